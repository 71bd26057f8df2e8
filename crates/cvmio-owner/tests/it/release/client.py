"""A guest that was written from the document of the KBS protocol alone (kbs_attestation_protocol.md of Trustee) and from RFC 7516 to 7518.

It shares no code with ours. The evidence comes from whoever runs it: report data goes out as a line of hexadecimal digits, evidence comes in as a
line of base64. The last line is what was released, in hexadecimal digits.
"""

import base64
import hashlib
import http.client
import json
import ssl
import sys

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash
from cryptography.hazmat.primitives.keywrap import aes_key_unwrap

port, authority, resource, use_token = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "token"


def encode(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def connect():
    return http.client.HTTPSConnection("127.0.0.1", port, context=ssl.create_default_context(cafile=authority))


def ask(connection, method, path, body=None, headers=None):
    text = None if body is None else json.dumps(body)
    connection.request(method, "/kbs/v0" + path, text, {"Content-Type": "application/json", **(headers or {})})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        sys.exit(f"{response.status} {content.decode()}")
    return response, json.loads(content)


connection = connect()
request = {"version": "0.4.0", "tee": "cvmio-simulated", "extra-params": {}}
response, challenge = ask(connection, "POST", "/auth", request)
cookie = response.getheader("Set-Cookie").split(";")[0]

private = ec.generate_private_key(ec.SECP256R1())
numbers = private.public_key().public_numbers()
key = {
    "kty": "EC",
    "crv": "P-256",
    "alg": "ECDH-ES+A256KW",
    "x": encode(numbers.x.to_bytes(32, "big")),
    "y": encode(numbers.y.to_bytes(32, "big")),
}
bound = {"nonce": challenge["nonce"], "tee-pubkey": key, "additional-evidence": ""}
canonical = json.dumps(bound, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
print(hashlib.sha384(canonical.encode()).hexdigest() + "00" * 16, flush=True)
attestation = {
    "runtime-data": {"nonce": challenge["nonce"], "tee-pubkey": key},
    "tee-evidence": {"primary_evidence": {"report": sys.stdin.readline().strip()}, "additional_evidence": ""},
}
_, granted = ask(connection, "POST", "/attest", attestation, {"Cookie": cookie})

if use_token:
    connection = connect()
    headers = {"Authorization": "Bearer " + granted["token"]}
else:
    headers = {"Cookie": cookie}
_, message = ask(connection, "GET", "/resource/" + resource, headers=headers)

header = json.loads(decode(message["protected"]))
assert header["alg"] == "ECDH-ES+A256KW" and header["enc"] == "A256GCM", header
epk = header["epk"]
x, y = (int.from_bytes(decode(epk[name]), "big") for name in ("x", "y"))
shared = private.exchange(ec.ECDH(), ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key())
name = header["alg"].encode()
info = len(name).to_bytes(4, "big") + name + bytes(4) + bytes(4) + (256).to_bytes(4, "big")
wrapping = ConcatKDFHash(algorithm=hashes.SHA256(), length=32, otherinfo=info).derive(shared)
content_key = aes_key_unwrap(wrapping, decode(message["encrypted_key"]))
sealed = decode(message["ciphertext"]) + decode(message["tag"])
print(AESGCM(content_key).decrypt(decode(message["iv"]), sealed, message["protected"].encode()).hex())
