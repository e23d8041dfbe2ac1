"""Authorities with certificates, made with openssl."""

import subprocess

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Authority:
    """An authority whose files are in a directory. Each name of a file begins with that of the authority."""

    def __init__(self, directory, name):
        self.directory, self.name = directory, name
        self.file = self.path("ca.crt")
        self.openssl("req", "-x509", *KEY, "-keyout", self.path("ca.key"), "-out", self.file, "-days", "2", "-subj", f"/CN={name}")

    def path(self, name):
        return str(self.directory / f"{self.name}-{name}")

    @staticmethod
    def openssl(*words):
        subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=30)

    def issue(self, name, purpose="serverAuth", host="DNS:localhost,IP:127.0.0.1"):
        """Makes a certificate, and returns the paths of it and of its key."""
        certificate, key, request, extensions = (self.path(f"{name}.{end}") for end in ("crt", "key", "csr", "ext"))
        with open(extensions, "w", encoding="utf-8") as file:
            file.write(f"subjectAltName={host}\nextendedKeyUsage={purpose}\nbasicConstraints=CA:FALSE\n")
        self.openssl("req", "-new", *KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        self.openssl("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self.path("ca.key"), "-CAcreateserial", "-days", "2",
                     "-out", certificate, "-extfile", extensions)
        return certificate, key
