"""What ``retryflow doctor`` looks at: each check yields findings, and nothing when all is well."""
