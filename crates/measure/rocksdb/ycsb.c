/*
 * The mixes of the in-memory paper (section 5.3, figure 5) on RocksDB, through its C interface.
 *
 * ycsb DIRECTORY MIX RECORDS OPERATIONS
 *
 * Loads RECORDS of 1000 bytes, which is not timed, and then does OPERATIONS of a mix. Keys are chosen by Zipf's law with an exponent of
 * 0.99, spread over the whole range, as YCSB does it (Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", 2010, section 5;
 * the generator is Gray's, "Quickly Generating Billion-Record Synthetic Databases", 1994). Writes go to the log and are not synced one by
 * one, as YCSB's own driver for RocksDB has it. Prints one line: `seconds operations read-ns update-ns insert-ns`.
 */
#include <math.h>
#include <rocksdb/c.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum kind { READ, UPDATE, INSERT, MODIFY };
enum { VALUE = 1000, KEY = 20 };

/* Percent of the first kind of operation; the rest is of the second. */
static const struct mix {
    const char *name;
    int share;
    enum kind first, second;
} mixes[] = {
    {"a", 50, READ, UPDATE}, {"b", 95, READ, UPDATE}, {"c", 95, READ, INSERT},
    {"d", 50, READ, MODIFY}, {"e", 50, UPDATE, INSERT}, {"f", 100, READ, READ},
};

static uint64_t state = 88172645463325252u;

/* xorshift64*, Vigna 2014. */
static uint64_t next_random(void) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 2685821657736338717u;
}

static double uniform(void) { return (double)(next_random() >> 11) / 9007199254740992.0; }

static const double theta = 0.99;
static double zeta_n, zeta_2, eta, alpha;

static void zipf_begin(uint64_t count) {
    for (uint64_t i = 1; i <= count; i++) zeta_n += pow(1.0 / (double)i, theta);
    zeta_2 = 1.0 + pow(0.5, theta);
    alpha = 1.0 / (1.0 - theta);
    eta = (1.0 - pow(2.0 / (double)count, 1.0 - theta)) / (1.0 - zeta_2 / zeta_n);
}

static uint64_t zipf(uint64_t count) {
    double u = uniform(), uz = u * zeta_n;
    if (uz < 1.0) return 0;
    if (uz < zeta_2) return 1;
    uint64_t rank = (uint64_t)((double)count * pow(eta * u - eta + 1.0, alpha));
    return rank < count ? rank : count - 1;
}

/* FNV-1a over the eight bytes: popular keys are not neighbours. */
static uint64_t scramble(uint64_t rank) {
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < 8; i++) hash = (hash ^ (rank >> (8 * i) & 255)) * 1099511628211u;
    return hash;
}

static void die(const char *what, char *error) {
    fprintf(stderr, "ycsb: %s: %s\n", what, error ? error : "failed");
    exit(1);
}

static rocksdb_t *db;
static rocksdb_readoptions_t *reading;
static rocksdb_writeoptions_t *writing;

static void put(uint64_t number) {
    char key[KEY + 1], value[VALUE], *error = NULL;
    snprintf(key, sizeof key, "user%016llx", (unsigned long long)number);
    for (size_t i = 0; i + 8 <= VALUE; i += 8) {
        uint64_t word = next_random();
        memcpy(value + i, &word, 8);
    }
    rocksdb_put(db, writing, key, strlen(key), value, VALUE, &error);
    if (error) die("put", error);
}

static void get(uint64_t number) {
    char key[KEY + 1], *error = NULL;
    size_t length = 0;
    snprintf(key, sizeof key, "user%016llx", (unsigned long long)number);
    char *value = rocksdb_get(db, reading, key, strlen(key), &length, &error);
    if (error) die("get", error);
    if (!value || length != VALUE) die("get", "a record is missing");
    rocksdb_free(value);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int count, char **words) {
    if (count != 5) die("usage", "ycsb DIRECTORY MIX RECORDS OPERATIONS");
    const struct mix *mix = NULL;
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++)
        if (!strcmp(mixes[i].name, words[2])) mix = &mixes[i];
    uint64_t records = strtoull(words[3], NULL, 10), operations = strtoull(words[4], NULL, 10);
    if (!mix || records < 3 || !operations) die("usage", "no such mix, too few records, or no operations");
    char *error = NULL;
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    db = rocksdb_open(options, words[1], &error);
    if (error) die("open", error);
    reading = rocksdb_readoptions_create();
    writing = rocksdb_writeoptions_create();
    for (uint64_t i = 0; i < records; i++) put(i);
    rocksdb_flushoptions_t *flush = rocksdb_flushoptions_create();
    rocksdb_flush(db, flush, &error);
    if (error) die("flush", error);
    zipf_begin(records);
    double spent[4] = {0};
    uint64_t done[4] = {0}, inserted = records;
    double began = now();
    for (uint64_t i = 0; i < operations; i++) {
        enum kind kind = (int)(next_random() >> 33) % 100 < mix->share ? mix->first : mix->second;
        uint64_t key = scramble(zipf(records)) % records;
        double from = now();
        if (kind == READ || kind == MODIFY) get(key);
        if (kind == UPDATE || kind == MODIFY) put(key);
        if (kind == INSERT) put(inserted++);
        spent[kind] += now() - from;
        done[kind]++;
    }
    double seconds = now() - began;
    rocksdb_close(db);
    double mean[4];
    for (int i = 0; i < 4; i++) mean[i] = done[i] ? spent[i] / (double)done[i] * 1e9 : 0;
    printf("%.9f %llu %.0f %.0f %.0f\n", seconds, (unsigned long long)operations, mean[READ],
           done[MODIFY] ? mean[MODIFY] : mean[UPDATE], mean[INSERT]);
    return 0;
}
