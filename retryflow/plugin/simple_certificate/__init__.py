"""SimpleCertificatePlugin: a demonstration certificate authority; its certificates are real, its trust is not."""

from retryflow.plugin.simple_certificate.plugin import SimpleCertificatePlugin

__all__ = ["SimpleCertificatePlugin"]
