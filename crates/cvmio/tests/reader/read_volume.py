#!/usr/bin/env python3
"""Reads a volume by docs/disk-format.md alone, without any of the code that wrote it.

A second implementation: what it reads after a crash must be what the program reads. It opens volumes with aes-256-gcm,
confidentiality, integrity, an anchor in a file and a key file, at any level but `transaction`, not grown and not in a change of
key. It needs the package `cryptography` for AES-256-GCM.

    read_volume.py POLICY IMAGE KEY-FILE CONTENT

writes the logical content to CONTENT and prints what it found. Whatever does not verify ends it.
"""

import hashlib
import hmac
import re
import struct
import sys
import zlib

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

BLOCK = 4096
ZERO = bytes(BLOCK)
OPEN = 2**64 - 1
SUITE = b"aes-256-gcm"
MAP, SALTS, BITMAP = 1, 2, 3


class Refused(Exception):
    pass


def must(condition, what):
    if not condition:
        raise Refused(what)


def sha256(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def hkdf(salt, secret, *parts):
    info = b"cvm-io 1" + b"".join(b"\0" + part for part in parts)
    extracted = hmac.new(salt or bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def unseal(key, nonce, ad, sealed, tag):
    return AESGCM(key).decrypt(nonce.to_bytes(12, "little"), sealed + tag, ad)


class Entry:
    def __init__(self, raw):
        self.physical = int.from_bytes(raw[0:5], "little")
        self.epoch = int.from_bytes(raw[5:8], "little")
        self.nonce = int.from_bytes(raw[8:14], "little")
        self.flags = int.from_bytes(raw[14:16], "little")
        self.tag = raw[16:32]
        must(self.physical or raw == bytes(32), "an entry is half absent")


def entries(page, count):
    return [Entry(page[32 * i : 32 * i + 32]) for i in range(count)]


def read_policy(path):
    text = open(path, encoding="utf-8").read()
    return dict(re.findall(r'^([a-z-]+) = "?([^"\n]*)"?', text, re.MULTILINE))


def read_stamp(path):
    """The stamp in a `file:` anchor: of two slots the whole one with the higher number."""
    raw, best = open(path, "rb").read(), None
    for at in (0, BLOCK):
        slot = raw[at : at + 512]
        whole = slot[:8] == b"cvmioAF1" and zlib.crc32(slot[:508]) == struct.unpack_from("<I", slot, 508)[0]
        if whole and (best is None or slot[8:16][::-1] > best[8:16][::-1]):
            best = slot
    must(best is not None and best[16] == 1, "the anchor has no stamp")
    stamp = best[24:216]
    must(stamp[:8] == b"cvmioST1" and stamp[8:10] == b"\1\0", "not a stamp")
    return stamp


class Volume:
    def __init__(self, policy_path, image_path, key_path):
        policy = read_policy(policy_path)
        self.image = open(image_path, "rb")
        self.stamp = read_stamp(policy["anchor"].removeprefix("file:"))
        self.id = bytes.fromhex(policy["volume"])
        must(self.stamp[16:32] == self.id, "the anchor is another volume's")
        self.header, slots = self.find_header()
        must(self.header[4032:4064] in (bytes(32), sha256(self.header[:4032] + slots)), "header and slots are not whole")
        must(self.header[:12] == b"cvmioVOL\1\0\0\0" and self.header[16:32] == self.id, "not this volume's header")
        must(self.header[32] == 1 and self.header[33] == 3, "not a volume that this can read")
        must(self.header[72] == 0 and self.header[1096] == 0, "grown, or in a change of key")
        self.logical, self.physical = struct.unpack_from("<QQ", self.header, 40)
        must(self.logical * BLOCK == int(policy["size"]), "not the policy's size")
        self.segment_blocks, self.segments = struct.unpack_from("<II", self.header, 60)
        self.key = self.unlock(slots, open(key_path, "rb").read())
        for name, signed, mac in (
            (b"header", self.header[:4064], self.header[4064:]),
            (b"stamp", self.stamp[:160], self.stamp[160:]),
        ):
            key = hkdf(b"", self.key, b"mac", b"", name)
            must(hmac.compare_digest(hmac.new(key, signed, hashlib.sha256).digest(), mac), name.decode() + ": MAC")
        self.salts, self.epoch_keys = {}, {}

    def block(self, number, count=1):
        self.image.seek(number * BLOCK)
        return self.image.read(count * BLOCK)

    def find_header(self):
        for first in (0, 2):
            pair = self.block(first, 2)
            if sha256(pair) == self.stamp[96:128]:
                return pair[:BLOCK], pair[BLOCK:]
        raise Refused("no header is the one that the anchor vouches for")

    def unlock(self, slots, secret):
        for index in range(16):
            slot = slots[256 * index : 256 * index + 256]
            if slot[0] != 2:
                continue
            salt = slot[24:56]
            kek = hkdf(salt, secret, b"slot", b"", b"key file")
            if hkdf(salt, kek, b"slot", b"", b"commitment") != slot[56:88]:
                continue
            ad = self.id + bytes([index]) + slot[:88] + slot[148:]
            return AESGCM(hkdf(salt, kek, b"slot", b"", b"wrapping")).decrypt(slot[88:100], slot[100:148], ad)
        raise Refused("no key slot opens")

    def ad(self, kind, tree, level, number):
        return self.id + bytes([kind, tree, level]) + bytes(5) + struct.pack("<Q", number)

    def epoch_key(self, epoch, *use):
        if (epoch, use) not in self.epoch_keys:
            self.epoch_keys[epoch, use] = hkdf(self.salts[epoch], self.key, b"epoch", SUITE, *use)
        return self.epoch_keys[epoch, use]

    def superblock(self, slot):
        """The payload, or None if the slot holds nothing that opens."""
        raw = self.block(4 + slot)
        if raw[:8] != b"cvmioSB1":
            return None
        key = hkdf(raw[8:40], self.key, b"one-time", SUITE, b"superblock")
        try:
            return unseal(key, 0, self.ad(4, 0, 0, slot), raw[40:4080], raw[4080:])
        except Exception:
            return None

    # The trees, from a root entry.

    def node(self, tree, level, index, entry):
        must(not entry.epoch == 0, "a node without an epoch")
        key = self.epoch_key(entry.epoch, b"node")
        return unseal(key, entry.nonce, self.ad(2, tree, level, index), self.block(entry.physical), entry.tag)

    def walk(self, tree, level, index, entry):
        """(index, page, entry) of each leaf, and how many nodes there are."""
        if not entry.physical:
            return [], 0
        page = self.node(tree, level, index, entry)
        if level == 0:
            return [(index, page, entry)], 1
        leaves, nodes = [], 1
        for at, child in enumerate(entries(page, 128)):
            found, below = self.walk(tree, level - 1, 128 * index + at, child)
            leaves, nodes = leaves + found, nodes + below
        return leaves, nodes

    def read_salts(self, level, index, entry):
        """How many nodes the salt table has; fills in the salts."""
        if not entry.physical:
            return 0
        raw = self.block(entry.physical)
        key = hkdf(raw[:32], self.key, b"one-time", SUITE, b"salt table")
        page = unseal(key, 0, self.ad(3, SALTS, level, index), raw[32:], entry.tag)
        if level == 0:
            for at in range(64):
                salt = page[32 * at : 32 * at + 32]
                if salt != bytes(32):
                    self.salts[64 * index + at] = salt
            return 1
        return 1 + sum(self.read_salts(level - 1, 64 * index + at, child) for at, child in enumerate(entries(page, 64)))

    # The journal.

    def records(self, leg_block, leg_segment, generation, head):
        """Whole, chained records from a place on: (generation, head behind it, session, epoch, salt, last of its commit, items)."""
        segment, block = leg_segment, leg_block
        while True:
            first = 8 + segment * self.segment_blocks + block
            raw = self.block(first) if block < self.segment_blocks else ZERO
            found = self.record(raw, first, block, generation, head)
            if found is None:
                # It may go on at the start of the segment that the last record named, or has stopped.
                if block == 0 or self.named is None or self.named == segment:
                    return
                segment, block = self.named, 0
                raw = self.block(8 + segment * self.segment_blocks)
                found = self.record(raw, 8 + segment * self.segment_blocks, 0, generation, head)
                if found is None:
                    return
            record, blocks = found
            yield record
            generation, head, block = generation + 1, record[1], block + blocks

    def record(self, raw, first, block, generation, head):
        number, length, blocks, flags, following, epoch, nonce = struct.unpack_from("<QIHHIIQ", raw, 40)
        if raw[:8] != b"cvmioJR1" or raw[8:24] != self.id or number != generation or block + blocks > self.segment_blocks:
            return None
        salt, whole = raw[72:104], self.block(first, blocks)
        if length % 40 or 128 + length > len(whole) or any(whole[128 + length :]):
            return None
        self.salts.setdefault(epoch, salt)
        key = hkdf(salt, self.key, b"epoch", SUITE, b"journal")
        try:
            payload = unseal(key, nonce, raw[:112] + head, whole[128 : 128 + length], raw[112:128])
        except Exception:
            return None
        self.named = following
        behind = sha256(b"cvmio head", head, raw[:128])
        items = [payload[at : at + 40] for at in range(0, length, 40)]
        return (number, behind, raw[24:40], epoch, salt, flags & 1, items), blocks

    def replay(self, superblock):
        """The changes behind a superblock up to the stamp, and those of the stamp's session behind it; None if the chain misses the stamp."""
        stamped, session = struct.unpack_from("<Q", self.stamp, 32)[0], self.stamp[48:64]
        covered, head = struct.unpack_from("<Q", superblock)[0], superblock[8:40]
        if covered > stamped:
            return None
        self.named = struct.unpack_from("<I", superblock, 220)[0]
        through, changes, commit = covered == stamped and head == self.stamp[64:96], [], []
        for at in range(superblock[217]):
            leg = superblock[224 + 56 * at : 280 + 56 * at]
            segment, block, first, last = struct.unpack_from("<IIQQ", leg)
            if last < first:
                continue
            if last != OPEN:
                # A closed leg's own records say where it goes on.
                self.named, named = None, self.named
            for number, head, writer, epoch, salt, ends, items in self.records(block, segment, first, leg[24:56]):
                if through and number > stamped and writer != session:
                    break
                self.salts[epoch] = salt
                commit += items
                through |= number == stamped and head == self.stamp[64:96]
                if ends:
                    changes.append(commit)
                    commit = []
                if number == last:
                    break
            if last != OPEN:
                self.named = named
        return changes if through else None

    def data(self, logical, entry):
        key = self.epoch_key(entry.epoch, b"data", b"aead")
        return unseal(key, entry.nonce, self.ad(1, 0, 0, logical), self.block(entry.physical), entry.tag)

    def read(self):
        """(content by logical block, what the trees and the bitmap count)."""
        slots = [payload for payload in map(self.superblock, range(4)) if payload]
        slots.sort(key=lambda payload: (payload[56:64][::-1], payload[208:216][::-1]), reverse=True)
        for payload in slots:
            self.salts = {}
            changes = self.replay(payload)
            if changes is not None:
                break
        else:
            raise Refused("no superblock leads to the stamp")
        replayed, self.salts = self.salts, {}
        epoch = struct.unpack_from("<I", payload, 64)[0]
        nodes = {"salts": self.read_salts(3, 0, Entry(payload[136:168]))}
        self.salts |= replayed
        if epoch:
            self.salts[epoch] = payload[72:104]
        levels = depth(self.logical, 128, 128)
        leaves, nodes["map"] = self.walk(MAP, levels - 1, 0, Entry(payload[104:136]))
        mapped = {}
        for index, page, _ in leaves:
            mapped |= {128 * index + at: entry for at, entry in enumerate(entries(page, 128)) if entry.physical}
        must(len(mapped) == struct.unpack_from("<Q", payload, 200)[0], "mapped blocks are miscounted")
        bits = self.bits(Entry(payload[168:200]))
        must(all(self.is_set(bits, entry.physical) for entry in mapped.values()), "a mapped block is not marked")
        for item in (item for commit in changes for item in commit):
            self.apply(item, mapped)
        if mapped and changes:
            self.last_commit_opens(changes[-1])
        content = {logical: self.data(logical, entry) for logical, entry in mapped.items()}
        used = sum(bin(byte).count("1") for page in bits.values() for byte in page)
        counts = {"mapped": len(mapped), "replayed": len(changes), "used": used}
        return content, counts | nodes

    def apply(self, item, mapped):
        argument, kind = int.from_bytes(item[:7], "little"), item[7]
        if kind == 1:
            mapped[argument] = Entry(item[8:])
        elif kind == 2:
            for logical in range(argument, argument + struct.unpack_from("<Q", item, 8)[0]):
                mapped.pop(logical, None)
        elif kind == 4:
            self.salts[argument] = item[8:40]
        else:
            must(kind == 3, f"an item of kind {kind}")

    def last_commit_opens(self, commit):
        for item in commit:
            if item[7] == 1:
                self.data(int.from_bytes(item[:7], "little"), Entry(item[8:]))

    def bits(self, root):
        """Pages of the bitmap's leaves by index; an inner node's flags must say how many bits of a leaf are not set."""
        journal = self.segments * self.segment_blocks
        data = max(d for d in guesses(self.physical - 8 - journal) if 8 + journal + 4 * tree_nodes(d, 32768, 128) + d <= self.physical)
        self.data_start = 8 + journal + 4 * tree_nodes(data, 32768, 128)
        levels = depth(data, 32768, 128)
        leaves, _ = self.walk(BITMAP, levels - 1, 0, root)
        for _, page, entry in leaves:
            unset = 32768 - sum(bin(byte).count("1") for byte in page)
            must(levels == 1 or entry.flags == unset, "free blocks are miscounted")
        return {index: page for index, page, _ in leaves}

    def is_set(self, bits, physical):
        bit = physical - self.data_start
        page = bits.get(bit // 32768, ZERO)
        return page[bit % 32768 // 8] >> bit % 8 & 1


def guesses(most):
    return range(most - 4 * tree_nodes(most, 32768, 128), most + 1)


def tree_nodes(items, leaf, fan_out):
    nodes, level = 0, -(-items // leaf)
    while level > 1:
        nodes, level = nodes + level, -(-level // fan_out)
    return nodes + 1


def depth(items, leaf, fan_out):
    levels, level = 1, -(-items // leaf)
    while level > 1:
        levels, level = levels + 1, -(-level // fan_out)
    return levels


def main(policy, image, key, out):
    volume = Volume(policy, image, key)
    content, counts = volume.read()
    with open(out, "wb") as file:
        file.truncate(volume.logical * BLOCK)
        for logical, page in content.items():
            file.seek(logical * BLOCK)
            file.write(page)
    print(" ".join(f"{name}={count}" for name, count in counts.items()))


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except Refused as refused:
        sys.exit(f"refused: {refused}")
