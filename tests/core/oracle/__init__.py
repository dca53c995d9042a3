"""The peers' reference vectors beside what assay.core computes from the same inputs, and where the two differ."""
