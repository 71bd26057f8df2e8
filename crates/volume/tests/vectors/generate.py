#!/usr/bin/env python3
"""Writes the test vectors from docs/disk-format.md, without any of the code that they test.

Run it in this directory when the format's version changes, and never otherwise: volumes of this version exist.
A vector is a line with its length in bytes, then lines of 32 bytes behind their offset, both in hex. Lines that
are all zero are left out. The same bytes are the seeds of the fuzz targets.
"""

import hashlib
import os
import struct


def ramp(start, length):
    return bytes((start + i) % 256 for i in range(length))


VOLUME = ramp(0x00, 16)
SESSION = ramp(0x20, 16)


SEEDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../fuzz/seeds")


def save(name, data, target=None):
    if target:
        os.makedirs(os.path.join(SEEDS, target), exist_ok=True)
        with open(os.path.join(SEEDS, target, name), "wb") as file:
            file.write(data)
    with open(name + ".hex", "w") as file:
        file.write(f"length {len(data)}\n")
        for at in range(0, len(data), 32):
            line = data[at : at + 32]
            if any(line):
                file.write(f"{at:04x} {line.hex()}\n")


def entry(physical, epoch, nonce, flags, tag):
    parts = physical.to_bytes(5, "little") + epoch.to_bytes(3, "little") + nonce.to_bytes(6, "little")
    return parts + struct.pack("<H", flags) + tag


def associated_data(kind, tree, level, number):
    return VOLUME + bytes([kind, tree, level, 0, 0, 0, 0, 0]) + struct.pack("<Q", number)


def item(kind, argument, body):
    assert len(body) <= 32
    return argument.to_bytes(7, "little") + bytes([kind]) + body.ljust(32, b"\0")


def leg(segment, block, first, last, head):
    return struct.pack("<IIQQ", segment, block, first, last) + head


FULL_ENTRY = entry(0x0908070605, 0x0C0B0A, 0x1211100F0E0D, 0, ramp(0xA0, 16))
LARGEST_ENTRY = entry(2**40 - 1, 2**24 - 1, 2**48 - 1, 2**16 - 1, b"\xff" * 16)
MAP_ROOT = entry(5000, 3, 77, 0, ramp(0x10, 16))
SALTS_ROOT = entry(5001, 0, 0, 0, ramp(0x30, 16))
BITMAP_ROOT = entry(264, 3, 78, 1234, ramp(0x50, 16))

save("entries", bytes(32) + FULL_ENTRY + LARGEST_ENTRY, "entry")

save(
    "associated-data",
    associated_data(1, 0, 0, 0x123456789A)
    + associated_data(2, 1, 2, 17)
    + associated_data(2, 3, 1, 18)
    + associated_data(3, 2, 3, 0)
    + associated_data(4, 0, 0, 2),
)


# Sizes, from the formulas of docs/semantics.md, section "Sizes", by search without any cleverness.
def clamp(value, least, most):
    return max(least, min(most, value))


def power_of_two(value):
    return 1 << (value.bit_length() - 1)


def tree(items, leaf, fan_out):
    levels = [-(-items // leaf)]
    while levels[-1] > 1:
        levels.append(-(-levels[-1] // fan_out))
    return levels


def sizes(logical, physical):
    share = clamp(physical // 64, 256, 65536)
    segment = clamp(power_of_two(share // 16), 16, 256)
    segments = share // segment
    rest = physical - 8 - segment * segments
    data = rest - 4 * sum(tree(rest, 32768, 128))  # too low or right: a smaller D needs a smaller bitmap
    while data + 1 + 4 * sum(tree(data + 1, 32768, 128)) <= rest:
        data += 1
    need = logical + 2 * sum(tree(logical, 128, 128)) + 2 * clamp(logical // 32, 256, 262144)
    need += clamp(logical // 256, 64, 4096) + clamp(data // 32, 256, 131072)
    return {
        "logical": logical,
        "physical": physical,
        "segment-blocks": segment,
        "segments": segments,
        "unit-blocks": clamp(power_of_two(physical // 256 or 1), 64, 32768),
        "bitmap-start": 8 + segment * segments,
        "data-start": 8 + segment * segments + 4 * sum(tree(data, 32768, 128)),
        "data-blocks": data,
        "map-levels": len(tree(logical, 128, 128)),
        "bitmap-levels": len(tree(data, 32768, 128)),
        "pinned-limit": clamp(min(logical, data) // 32, 256, 262144),
        "reserve-target": clamp(data // 32, 256, 131072) // 2,
        "full": int(need <= data),
    }


def smallest_full(logical):
    physical = logical
    step = 1
    while not sizes(logical, physical)["full"]:  # the first that will do, give or take a step
        physical += step
        step = max(1, physical >> 20)
    while sizes(logical, physical - 1)["full"]:
        physical -= 1
    return physical


ROWS = [(logical, smallest_full(logical)) for logical in (2**12, 5000, 2**18, 10**6, 2**28, 2**34)]
ROWS += [(2**34, 2**14), (2**34, 2**40), (2**20, 2**20), (2**20, 32 * 64 * 16 - 1), (2**20, 32 * 64 * 16)]
with open("sizes.csv", "w") as file:
    rows = [sizes(*row) for row in ROWS]
    file.write(",".join(rows[0]) + "\n")
    for row in rows:
        file.write(",".join(str(value) for value in row.values()) + "\n")



# Growth, from section "Extents": for each extent its first place, first block of data, data blocks and first bit.
def extents(created, growths):
    first = sizes(*created)
    unit = first["unit-blocks"]
    rows = [(first["bitmap-start"], first["data-start"], first["data-blocks"], 0)]
    end, bits = created[1], first["data-blocks"]
    for logical, physical in growths:
        first_bit = -(-bits // unit) * unit
        data = physical - end
        while data > 0:  # take away until the places of the nodes that are new fit before it
            old, new = tree(bits, 32768, 128), tree(first_bit + data, 32768, 128)
            places = 4 * sum(count - (old[level] if level < len(old) else 0) for level, count in enumerate(new))
            if places + data <= physical - end:
                break
            data -= 1
        if data == 0:
            places = 0
        else:
            bits = first_bit + data
        rows.append((end, end + places, data, first_bit))
        end = physical
    return rows


GROWN = [
    ((5000, 9000), [(5000, 20000), (60000, 20000), (100000, 200000), (200000, 500000)]),
    ((2**18, 300000), [(2**18, 301025), (2**20, 2**21), (2**24, 2**24)]),
    ((2**23, 9 * 2**20), [(2**26, 70 * 2**20), (2**34, 2**35)]),
]
with open("extents.csv", "w") as file:
    file.write("volume,logical,physical,places,data,data-blocks,first-bit\n")
    for number, (created, growths) in enumerate(GROWN):
        for size, row in zip([created] + growths, extents(created, growths)):
            file.write(",".join(str(value) for value in (number, *size, *row)) + "\n")

GIB = sizes(2**18, smallest_full(2**18))
header = b"cvmioVOL" + struct.pack("<II", 1, 7) + VOLUME
header += bytes([1, 3, 3, 1]) + bytes(4)
header += struct.pack("<QQ", GIB["logical"], GIB["physical"]) + bytes([7, 6, 15, 0])
header += struct.pack("<III", GIB["segment-blocks"], GIB["segments"], GIB["unit-blocks"])
header += bytes(3992)
assert len(header) == 4064
save("header", header + ramp(0xE0, 32), "header")
growths = [(2**18, 2 * GIB["physical"]), (2**20, 5 * GIB["physical"])]
grown = header[:35] + bytes([0]) + header[36:72] + struct.pack("<Q", len(growths))
grown += b"".join(struct.pack("<QQ", *growth) for growth in growths)
save("header-grown", grown.ljust(4064, b"\0") + ramp(0xE0, 32), "header")
rekeying = struct.pack("<II", 1, 0x123456) + ramp(0x10, 32) + ramp(0x60, 32) + ramp(0x70, 32) + ramp(0xC0, 16)
rekeying = header[:1096] + rekeying + header[1096 + len(rekeying) :]
save("header-rekeying", rekeying + ramp(0xE0, 32), "header")
pair = (header + ramp(0xE0, 32)).ljust(8192, b"\0")
backup = (b"cvmioHB1" + struct.pack("<II", 1, 0) + hashlib.sha256(pair).digest()).ljust(4096, b"\0")
save("header-backup", backup + pair, "backup")

payload = struct.pack("<Q", 41) + ramp(0x40, 32) + SESSION + struct.pack("<QII", 9, 3, 4) + ramp(0x60, 32)
payload += MAP_ROOT + SALTS_ROOT + BITMAP_ROOT + struct.pack("<QQ", 1000, 12) + bytes([1, 3])
payload += struct.pack("<HI", 2, 8)
assert len(payload) == 224
payload += leg(5, 6, 11, 40, ramp(0x70, 32)) + leg(7, 0, 41, 41, ramp(0x80, 32)) + leg(9, 1, 42, 2**64 - 1, ramp(0x40, 32))
payload = payload.ljust(1568, b"\0") + struct.pack("<II", 10, 11)
payload = payload.ljust(4040, b"\0")
save("superblock-payload", payload, "superblock")
save("superblock-grown", payload[:2592] + bytes([5]) + payload[2593:], "superblock")
rekeying = payload[:2688] + entry(5002, 0, 0, 0, ramp(0xD0, 16)) + payload[2720:]
save("superblock-rekeying", rekeying, "superblock")
save("superblock-block", b"cvmioSB1" + ramp(0xB0, 32) + payload + ramp(0xC0, 16), "superblock")

items = (
    item(1, 0xFEDCBA98765432, FULL_ENTRY)
    + item(2, 300, struct.pack("<Q", 2**33))
    + item(3, 2, struct.pack("<II", 5, 6))
    + item(3, 8, struct.pack("<8I", *range(100, 108)))
    + item(4, 2**24 - 1, ramp(0x60, 32))
    + item(5, 1, MAP_ROOT)
    + item(5, 2, SALTS_ROOT)
    + item(5, 3, BITMAP_ROOT)
    + item(6, 0, struct.pack("<Q", 1000))
)
save("items", items, "items")
save("items-grown", item(5, 1 + 256 * 5, MAP_ROOT) + item(5, 3 + 256 * 16, BITMAP_ROOT), "items")

record = b"cvmioJR1" + VOLUME + SESSION + struct.pack("<QIHH", 42, 120 * 40, 2, 1)
record += struct.pack("<IIQ", 11, 3, 2**48 - 1) + ramp(0x60, 32) + bytes(8)
assert len(record) == 112
before = ramp(0x40, 32)
save("record-associated-data", record + before)
record += ramp(0xD0, 16)
save("record-header", record, "record")
save("head-input", b"cvmio head" + before + record)
save("genesis-input", b"cvmio genesis" + VOLUME)

salts = bytes(32) + ramp(0x90, 32) + bytes(32 * 61) + ramp(0x91, 32)
save("salt-leaf", ramp(0xF0, 32) + salts.ljust(4064, b"\0"), "salts")

stamp = b"cvmioST1" + struct.pack("<HB5x", 1, 1) + VOLUME + struct.pack("<QQ", 42, 7) + SESSION
stamp += ramp(0x40, 32) + ramp(0x60, 32) + bytes(32) + ramp(0xE0, 32)
assert len(stamp) == 192
save("stamp", stamp, "stamp")
moved = stamp[:10] + b"\x03" + stamp[11:128] + b"file:/var/lib/cvmio/new.anchor".ljust(32, b"\0") + stamp[160:]
save("stamp-moved", moved, "stamp")
