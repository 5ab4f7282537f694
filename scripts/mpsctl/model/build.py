"""Which build this is. The builder puts the digest of the sources in place of the word below."""

ID = "sources"
