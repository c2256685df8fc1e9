"""The header reader against the safetensors package: random files, mutations, verdicts and reasons."""
