#!/usr/bin/env bash
# Builds the API documentation, and the book of docs/ where mdbook is installed.
set -euo pipefail
source "$(dirname "$0")/env.sh"
cd "$root"

say "the API"
cargo doc --release --no-deps --workspace
echo "$CARGO_TARGET_DIR/doc/millstream/index.html"

say "the book"
if command -v mdbook >/dev/null; then
  mdbook build
  echo "$root/target/book/index.html"
else
  echo "mdbook is not installed: the pages are docs/README.md and those beside it."
  echo "To build them as a book: cargo install --locked mdbook"
fi
