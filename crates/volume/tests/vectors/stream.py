#!/usr/bin/env python3
"""Writes a whole stream from docs/stream-format.md, without any of the code that it tests.

As generate.py; it needs the package `cryptography` for AES-256-GCM besides.
"""

import hashlib
import hmac
import os
import struct

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

HERE = os.path.dirname(os.path.abspath(__file__))
SEEDS = os.path.join(HERE, "../../../../fuzz/seeds/stream")


def ramp(start, length):
    return bytes((start + i) % 256 for i in range(length))


def hkdf(salt, secret, *parts):
    info = b"cvm-io 1" + b"".join(b"\0" + part for part in parts)
    extracted = hmac.new(salt or bytes(32), secret, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def gcm(key, nonce, ad, plaintext):
    """Ciphertext and tag."""
    return AESGCM(key).encrypt(nonce, plaintext, ad)


KEY = ramp(0xC0, 32)
KEY_FILE = ramp(0x11, 48)
STREAM, VOLUME, HEAD = ramp(0x20, 16), ramp(0x00, 16), ramp(0x40, 32)
BLOCKS = 1 << 18

header = b"cvmioSX1" + struct.pack("<II", 1, 0) + STREAM + VOLUME + struct.pack("<Q", 41) + HEAD
header = (header + struct.pack("<Q", BLOCKS)).ljust(4064, b"\0")

salt, nonce, label = ramp(0x50, 32), ramp(0x60, 12), b"".ljust(64, b"\0")
kek = hkdf(salt, KEY_FILE, b"slot", b"", b"key file")
fixed = bytes([2]).ljust(24, b"\0") + salt + hkdf(salt, kek, b"slot", b"", b"commitment")
rest = label + bytes(44)
wrapped = gcm(hkdf(salt, kek, b"slot", b"", b"wrapping"), nonce, STREAM + b"\0" + fixed + rest, KEY)
slots = (fixed + nonce + wrapped + rest).ljust(4096, b"\0")

mac = hmac.new(hkdf(b"", KEY, b"mac", b"", b"stream"), header + slots, hashlib.sha256).digest()
start = header + mac + slots
assert len(start) == 8192


def chunk(first, end, stretches):
    """A payload whose data is the number of each block, again and again."""
    payload = struct.pack("<QQQ", first, end, len(stretches))
    payload += b"".join(struct.pack("<QQ", at, blocks) for at, blocks in stretches)
    for at, blocks in stretches:
        payload += b"".join(struct.pack("<Q", block) * 512 for block in range(at, at + blocks))
    return payload


LEGS = [
    (ramp(0x70, 32), [chunk(0, 7, [(0, 1), (6, 1)]), chunk(7, 70_000, [])]),
    (ramp(0x90, 32), [chunk(70_000, BLOCKS, [(70_000, 2)])]),
]

sealed, opened = start, start
link, tag, number = hashlib.sha256(b"cvmio stream" + start).digest(), bytes(16), 0
for salt, payloads in LEGS:
    link = hashlib.sha256(b"cvmio stream leg" + link + tag + struct.pack("<Q", number) + salt).digest()
    key = hkdf(salt, KEY, b"stream", b"aes-256-gcm", b"chunk")
    leg = bytes([1, 0, 0, 0]) + struct.pack("<I", 32) + salt
    sealed, opened = sealed + leg, opened + leg
    for payload in payloads:
        last = int(struct.unpack_from("<Q", payload, 8)[0] == BLOCKS)
        frame = bytes([2 + last, 0, 0, 0]) + struct.pack("<I", len(payload))
        nonce = struct.pack("<Q", 2 * number + last).ljust(12, b"\0")
        body = gcm(key, nonce, link + frame, payload)
        tag, number = body[-16:], number + 1
        sealed, opened = sealed + frame + body, opened + frame + payload + tag

with open(os.path.join(HERE, "stream.hex"), "w") as file:
    file.write(f"length {len(sealed)}\n")
    for at in range(0, len(sealed), 32):
        if any(sealed[at : at + 32]):
            file.write(f"{at:04x} {sealed[at : at + 32].hex()}\n")

# What the fuzzer begins with: the same with its payloads open, and a payload by itself.
os.makedirs(SEEDS, exist_ok=True)
for name, seed in [("opened", opened), ("chunk", chunk(9, 600, [(9, 1), (12, 2), (599, 1)]))]:
    with open(os.path.join(SEEDS, name), "wb") as file:
        file.write(seed)
