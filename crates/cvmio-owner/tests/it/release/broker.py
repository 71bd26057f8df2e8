"""A key broker that was written from the document of the KBS protocol (kbs_attestation_protocol.md of Trustee), from its habits (a cookie with
attributes, an empty text for extra-params, a UUID for the session), and from RFC 7516 to 7518. It shares no code with ours.

It checks what a guest sends, byte for byte where the document says so, and answers in one of several ways; the last argument names it.
"""

import base64
import hashlib
import http.server
import json
import os
import ssl
import sys

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash
from cryptography.hazmat.primitives.keywrap import aes_key_wrap

certificate, key_file, way = sys.argv[1:4]
NONCE = base64.b64encode(os.urandom(32)).decode()
SESSION = "3e1c4b3f-7c52-4d9f-8f4b-6a7c6a4d1b1e"
HASH = {"sha256": hashlib.sha256, "sha512": hashlib.sha512}.get(way, hashlib.sha384)
seen = {}


def encode(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def encrypted(secret, key):
    x, y = (int.from_bytes(decode(key[name]), "big") for name in ("x", "y"))
    theirs = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    private = ec.generate_private_key(ec.SECP256R1())
    own = private.public_key().public_numbers()
    epk = {"crv": "P-256", "kty": "EC", "x": encode(own.x.to_bytes(32, "big")), "y": encode(own.y.to_bytes(32, "big"))}
    header = {"alg": "ECDH-ES+A256KW", "enc": "A256GCM", "epk": epk}
    protected = encode(json.dumps(header).encode())
    name = b"ECDH-ES+A256KW"
    info = len(name).to_bytes(4, "big") + name + bytes(8) + (256).to_bytes(4, "big")
    shared = private.exchange(ec.ECDH(), theirs)
    wrapping = ConcatKDFHash(algorithm=hashes.SHA256(), length=32, otherinfo=info).derive(shared)
    content_key, iv = os.urandom(32), os.urandom(12)
    sealed = AESGCM(content_key).encrypt(iv, secret, protected.encode())
    return {
        "protected": protected,
        "encrypted_key": encode(aes_key_wrap(wrapping, content_key)),
        "iv": encode(iv),
        "ciphertext": encode(sealed[:-16]),
        "tag": encode(sealed[-16:]),
    }


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def say(self, status, body, cookie=None):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        if cookie:
            self.send_header("Set-Cookie", f"kbs-session-id={cookie}; Path=/kbs; SameSite=Strict; Expires=Sun, 29 Nov 2099 03:30:00 GMT")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def problem(self, name, detail):
        self.say(401, {"type": "https://github.com/confidential-containers/kbs/errors/" + name, "detail": detail})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/kbs/v0/auth":
            assert set(body) == {"version", "tee", "extra-params"} and body["version"] == "0.4.0", body
            seen["tee"] = body["tee"]
            if way == "version":
                return self.problem("AttestationError", "KBS Client Protocol Version Mismatch: expect =0.5.0")
            if way == "proxy":
                return self.say(502, b"<html>Bad Gateway</html>")
            extra = {"selected-hash-algorithm": way} if way.startswith("sha") or way == "sm3" else ""
            return self.say(200, {"nonce": NONCE, "extra-params": extra}, None if way == "no-cookie" else SESSION)
        assert self.path == "/kbs/v0/attest" and self.headers["Cookie"] == "kbs-session-id=" + SESSION
        runtime, evidence = body["runtime-data"], body["tee-evidence"]
        assert runtime["nonce"] == NONCE and set(runtime["tee-pubkey"]) == {"kty", "crv", "alg", "x", "y"}
        bound = dict(runtime, **{"additional-evidence": evidence["additional_evidence"]})
        canonical = json.dumps(bound, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        expected = HASH(canonical).digest().ljust(64, b"\0")
        report = evidence["primary_evidence"]["attestation_report"]
        if seen["tee"] != "snp" or bytes(report["report_data"]) != expected:
            return self.problem("AttestationError", "Report Data is different from that in SNP Report")
        if way == "policy":
            return self.problem("AttestationError", "verify TEE evidence failed\x1b[31m")
        seen["key"] = runtime["tee-pubkey"]
        self.say(200, {"token": "e30.e30.AA"} if way != "no-token" else {}, SESSION)

    def do_GET(self):
        assert self.path == "/kbs/v0/resource/default/key/1" and self.headers["Cookie"] == "kbs-session-id=" + SESSION
        key = seen["key"]
        if way == "other-key":
            numbers = ec.generate_private_key(ec.SECP256R1()).public_key().public_numbers()
            key = {"x": encode(numbers.x.to_bytes(32, "big")), "y": encode(numbers.y.to_bytes(32, "big"))}
        message = encrypted(b"the released secret", key)
        if way == "changed":
            message["ciphertext"] = encode(b"x" + decode(message["ciphertext"])[1:])
        if way == "plain":
            message = {"secret": "in the clear"}
        self.say(200, message)


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key_file)
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
