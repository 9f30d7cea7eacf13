"""The authority of a job: it signs the certificate of the job's master, and nothing else.

A job that other machines reach has one of its own, in the folder ``tls`` of its directory. What
vouches for the master there is the authority's certificate, which travels with the job's secret
(`jobs.tickets`): no client trusts what a listener shows it first. It is renewed with the secret.

Imported late: cryptography takes longer than all else that a master imports, and a master that
starts again reads what is there.
"""

import datetime
import ipaddress
import os
import shutil
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from paceline.base.jobdir import JobDir
from paceline.wire.control_tls import MASTER

BEFORE = datetime.timedelta(days=1)
"""How much the clock of another machine may be behind."""
VALID = datetime.timedelta(days=3_650)
"""Longer than any job: the end of a certificate must not be that of a training."""
_NAME_LENGTH = 64

_Signer = tuple[ec.EllipticCurvePrivateKey, x509.Certificate]


def make_authority(job: JobDir, host: str) -> None:
    """Make the authority and the master's certificate; all files are there at once, or none.

    Args:
        job: in whose directory; the folder must not be there.
        host: address at which the master listens.

    Raises:
        OSError: it cannot be written.
    """
    fresh = job.tls.with_name("tls.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    authority = _authority(f"paceline job {job.job_id}"[:_NAME_LENGTH])
    master = _master(authority, host)
    _write(fresh / job.authority.name, _certificate(authority[1]))
    _write(fresh / job.authority_key.name, _key(authority[0]))
    _write(fresh / job.master_identity.name, _key(master[0]) + _certificate(master[1]))
    fresh.rename(job.tls)


def _authority(name: str) -> _Signer:
    key = ec.generate_private_key(ec.SECP256R1())
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _begun(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(own, critical=False)
    )
    return key, builder.sign(key, hashes.SHA256())


def _master(authority: _Signer, host: str) -> _Signer:
    signer, certificate = authority
    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.DNSName(MASTER), x509.IPAddress(ipaddress.ip_address(host))]
    issuer = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer)
    purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = (
        _begun(MASTER, certificate.subject.rfc4514_string().removeprefix("CN="), key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(purpose, critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(identifier, critical=False)
    )
    return key, builder.sign(signer, hashes.SHA256())


def _begun(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BEFORE)
        .not_valid_after(now + VALID)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
