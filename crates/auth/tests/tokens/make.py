#!/usr/bin/env python3
"""Creates the keys and tokens in this directory with the package `cryptography`, independently of Meridian's code.

Run it in this directory. It creates new private keys and does not keep them, so all files change together.
"""

import base64
import hashlib
import hmac
import json

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

CLAIMS = {"sub": "alice", "iat": 1700000000, "exp": 4102444800}
SECRET = bytes(range(64, 128))
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value, size=None):
    return b64(value.to_bytes(size or (value.bit_length() + 7) // 8, "big"))


def signed(header, sign, claims=CLAIMS):
    text = ".".join(b64(json.dumps(part).encode()) for part in (header, claims))
    return f"{text}.{b64(sign(text.encode()))}"


def ecdsa(key, digest, size, fixed=True):
    def sign(data):
        der = key.sign(data, ec.ECDSA(digest))
        if not fixed:
            return der
        r, s = decode_dss_signature(der)
        return r.to_bytes(size, "big") + s.to_bytes(size, "big")

    return sign


def other_s(sign):
    """Return the second valid signature, which anyone can derive from an ECDSA signature."""

    def malleated(data):
        signature = sign(data)
        s = P256_ORDER - int.from_bytes(signature[32:], "big")
        return signature[:32] + s.to_bytes(32, "big")

    return malleated


def pem(key):
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def write(name, data):
    with open(name, "wb") as file:
        file.write(data)


def main():
    rsa_key = rsa.generate_private_key(65537, 2048)
    weak = rsa.generate_private_key(65537, 1024)
    p256 = ec.generate_private_key(ec.SECP256R1())
    p384 = ec.generate_private_key(ec.SECP384R1())
    p521 = ec.generate_private_key(ec.SECP521R1())
    ed = ed25519.Ed25519PrivateKey.generate()
    for name, key in [("rsa", rsa_key), ("weak", weak), ("p256", p256), ("p384", p384), ("p521", p521), ("ed25519", ed)]:
        write(f"{name}.pem", pem(key))
    write("secret", SECRET)

    tokens = {}
    for bits, hash_ in [("256", hashes.SHA256()), ("384", hashes.SHA384()), ("512", hashes.SHA512())]:
        tokens[f"HS{bits}"] = signed(
            {"alg": f"HS{bits}", "typ": "JWT"},
            lambda data, bits=bits: hmac.new(SECRET, data, f"sha{bits}").digest(),
        )
        tokens[f"RS{bits}"] = signed(
            {"alg": f"RS{bits}", "kid": "rsa"}, lambda data, h=hash_: rsa_key.sign(data, padding.PKCS1v15(), h)
        )
        pss = padding.PSS(padding.MGF1(hash_), hash_.digest_size)
        tokens[f"PS{bits}"] = signed(
            {"alg": f"PS{bits}", "kid": "rsa"}, lambda data, h=hash_, p=pss: rsa_key.sign(data, p, h)
        )
    es256 = ecdsa(p256, hashes.SHA256(), 32)
    tokens["ES256"] = signed({"alg": "ES256", "kid": "p256"}, es256)
    tokens["ES384"] = signed({"alg": "ES384", "kid": "p384"}, ecdsa(p384, hashes.SHA384(), 48))
    tokens["EdDSA"] = signed({"alg": "EdDSA", "kid": "ed25519"}, ed.sign)
    tokens["ES256-der"] = signed({"alg": "ES256", "kid": "p256"}, ecdsa(p256, hashes.SHA256(), 32, fixed=False))
    tokens["ES256-other-s"] = signed({"alg": "ES256", "kid": "p256"}, other_s(es256))
    tokens["ES256-zero"] = signed({"alg": "ES256", "kid": "p256"}, lambda data: bytes(64))
    tokens["ES512"] = signed({"alg": "ES512", "kid": "p521"}, ecdsa(p521, hashes.SHA512(), 66))
    tokens["RS256-sha1"] = signed(
        {"alg": "RS256", "kid": "rsa"}, lambda data: rsa_key.sign(data, padding.PKCS1v15(), hashes.SHA1())
    )
    tokens["RS256-weak"] = signed(
        {"alg": "RS256", "kid": "weak"}, lambda data: weak.sign(data, padding.PKCS1v15(), hashes.SHA256())
    )
    tokens["PS256-no-salt"] = signed(
        {"alg": "PS256", "kid": "rsa"},
        lambda data: rsa_key.sign(data, padding.PSS(padding.MGF1(hashes.SHA256()), 0), hashes.SHA256()),
    )
    # The algorithm confusion attack on old libraries: the public key is used as the secret.
    for name, secret in [
        ("confused-pem", pem(rsa_key)),
        ("confused-pem-trimmed", pem(rsa_key).strip()),
        ("confused-der", rsa_key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)),
        ("confused-n", rsa_key.public_key().public_numbers().n.to_bytes(256, "big")),
        ("confused-empty", b""),
    ]:
        tokens[name] = signed(
            {"alg": "HS256", "kid": "rsa"}, lambda data, s=secret: hmac.new(s, data, hashlib.sha256).digest()
        )
    write("golden.txt", "".join(f"{name} {token}\n" for name, token in tokens.items()).encode())

    numbers = rsa_key.public_key().public_numbers()
    keys = [{"kty": "RSA", "kid": "rsa", "use": "sig", "n": number(numbers.n), "e": number(numbers.e)}]
    for name, key, curve, size in [("p256", p256, "P-256", 32), ("p384", p384, "P-384", 48), ("p521", p521, "P-521", 66)]:
        point = key.public_key().public_numbers()
        keys.append({"kty": "EC", "kid": name, "crv": curve, "x": number(point.x, size), "y": number(point.y, size)})
    raw = ed.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    keys.append({"kty": "OKP", "kid": "ed25519", "alg": "EdDSA", "crv": "Ed25519", "x": b64(raw)})
    small = weak.public_key().public_numbers()
    keys.append({"kty": "RSA", "kid": "weak", "n": number(small.n), "e": number(small.e)})
    write("jwks.json", json.dumps({"keys": keys}, indent=1).encode() + b"\n")


main()
