#!/usr/bin/env bash
# Runs the tests of the verbs transport against a real kernel RDMA stack without RDMA hardware: boots
# Debian's kernel in QEMU, makes Soft-RoCE devices in it (scripts/rdma-guest-init.sh) and runs the test
# binary there. Proves that the code works with libibverbs and the kernel; says nothing about speed.
#
#   scripts/test-rdma.sh              all tests, and then the engine
#   scripts/test-rdma.sh --pool       a memory server and its clients alone
#   scripts/test-rdma.sh --exchanges  one job by every exchange alone
#   scripts/test-rdma.sh NAME         those tests of the transport whose name contains NAME
#
# What is downloaded and built is kept in $CARGO_TARGET_DIR/rdma-guest. Where the guest cannot be had the
# script says NOT RUN and why, and its status is 77.
set -euo pipefail
source "$(dirname "$0")/env.sh"
source "$(dirname "$0")/apt.sh"
source "$(dirname "$0")/launched.sh"
cd "$root"

guest=$CARGO_TARGET_DIR/rdma-guest
limit_s=${MILLSTREAM_RDMA_LIMIT_S:-1800}
filter=${1:-}
# A part of the engine, without the tests of the transport.
only=
case $filter in --pool | --exchanges) only=${filter#--} filter= ;; esac
mkdir -p "$guest"

what="the tests of real RDMA verbs"

[ "$(uname -sm)" = "Linux x86_64" ] || not_run "the guest is for Linux on x86-64"

# --- packages -----------------------------------------------------------------------------------------
packages_or_not_run qemu-system-x86 busybox-static cpio kmod iproute2 rdma-core ibverbs-providers \
  libibverbs1 libibverbs-dev librdmacm1 librdmacm-dev xz-utils

# --- kernel -------------------------------------------------------------------------------------------
# The package that linux-image-amd64 stands for; the *cloud* kernel has no rdma_rxe.
image=$(apt-cache depends linux-image-amd64 2>/dev/null |
  awk '/Depends: linux-image-[0-9]/ { print $2; exit }')
[ -n "$image" ] || image=$(cat "$guest/image" 2>/dev/null) || true
[ -n "$image" ] || not_run "no package linux-image-amd64"
kernel=$guest/$image
if [ ! -f "$kernel/vmlinux" ]; then
  say "unpacking $image"
  rm -rf "$kernel" "$guest/download"
  mkdir -p "$kernel" "$guest/download"
  (cd "$guest/download" && apt-get download -qq "$image") >>"$guest/apt.log" 2>&1 ||
    not_run "cannot download $image (see $guest/apt.log)"
  dpkg -x "$guest"/download/*.deb "$kernel"
  rm -rf "$guest/download"
  release=$(ls "$kernel/lib/modules")
  depmod -b "$kernel" "$release"
  # The compressed kernel inside of vmlinuz begins at the magic of xz.
  at=$(LC_ALL=C grep -abo -m1 -P '\xfd7zXZ\x00' "$kernel/boot/vmlinuz-$release" | head -n 1 | cut -d: -f1)
  tail -c "+$((at + 1))" "$kernel/boot/vmlinuz-$release" 2>/dev/null |
    xz -dc --single-stream >"$kernel/vmlinux.part" 2>/dev/null || true
  [ -s "$kernel/vmlinux.part" ] || not_run "cannot unpack the kernel of $image"
  mv "$kernel/vmlinux.part" "$kernel/vmlinux"
  echo "$image" >"$guest/image"
fi
release=$(ls "$kernel/lib/modules")

# --- tests --------------------------------------------------------------------------------------------
tests=()
if [ -z "$only" ]; then
  say "building the tests"
  # By workspace, as all tests: other features would compile much of it a second time.
  targets=(--workspace --test verbs)
  [ -n "$filter" ] || targets+=(--test threads)
  mapfile -t tests < <(cargo test --release "${targets[@]}" --no-run --message-format=json 2>/dev/null | python3 -c '
import json, sys
for line in sys.stdin:
    made = json.loads(line)
    if made.get("executable") and made.get("profile", {}).get("test"):
        print(made["executable"])')
  [ ${#tests[@]} != 0 ] || die "the tests do not build"

  # With the headers that are here by now, the layouts of our declarations are compared with C.
  cargo test --release --workspace --lib layouts_are_those_of_the_c_headers 2>&1 |
    grep -E '^test ' || die "the structures are not those of the C headers"
fi

if [ -z "$filter" ] && [ -z "${MILLSTREAM_BUILT:-}" ]; then
  say "building millstream"
  cargo build --release --workspace --bin millstream
fi

# --- initial file system ------------------------------------------------------------------------------
files=$guest/files
rm -rf "$files"
mkdir -p "$files"/{bin,tests,modules,etc/libibverbs.d}
# With a root directory that others cannot read, no unprivileged process would see a device.
chmod 755 "$files"
install -m 755 scripts/rdma-guest-init.sh "$files/init"
install -m 644 scripts/rdma-guest-pool.sh "$files/pool.sh"
install -m 644 scripts/rdma-guest-exchanges.sh "$files/exchanges.sh"
[ -z "$only" ] || echo "$only" >"$files/only"
cp "$(command -v busybox)" "$files/bin/busybox"
ln -s busybox "$files/bin/sh"
cp "$(command -v ip || echo /sbin/ip)" "$files/bin/ip"
cp "$(command -v rdma || echo /sbin/rdma)" "$files/bin/rdma"
for test in "${tests[@]}"; do
  install -m 755 -s "$test" "$files/tests/$(basename "$test" | sed 's/-[0-9a-f]*$//')"
done
programs=("$files/bin/ip" "$files/bin/rdma")
[ -n "$only" ] || programs+=("$files"/tests/*)
if [ -n "$filter" ]; then
  echo "$filter" >"$files/filter"
else
  # The whole engine, as two processes over verbs.
  install -m 755 -s "$CARGO_TARGET_DIR/release/millstream" "$files/bin/millstream"
  mkdir -p "$files"/examples/{data,expected} "$files/target/demo"
  cp examples/*.sql "$files/examples/"
  cp examples/data/flights.parquet "$files/examples/data/"
  cp examples/expected/flights.csv "$files/examples/expected/"
  mkdir "$files/exchanges"
  for exchange in merge shuffle uppar broadcast; do
    job_by "$exchange" >"$files/exchanges/$exchange.sql"
  done
  programs+=("$files/bin/millstream")
fi
# Without this file there are no devices, and no error either.
cp /etc/libibverbs.d/rxe.driver "$files/etc/libibverbs.d/"
provider=$(ls /usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so)
opened=("$provider" /usr/lib/x86_64-linux-gnu/lib{ibverbs,rdmacm}.so.1)
copy_libraries() {
  ldd "$@" 2>/dev/null | awk '/=> \// { print $3 } /^\t\// { print $1 }' | sort -u |
    while read -r library; do
      mkdir -p "$files$(dirname "$library")"
      cp -nL "$library" "$files$library"
    done
}
for library in "${opened[@]}"; do
  mkdir -p "$files$(dirname "$library")"
  cp -L "$library" "$files$library"
done
copy_libraries "${programs[@]}" "${opened[@]}"
# crc32_generic is used by name and appears in no list of dependencies.
for module in crc32_generic dummy veth ib_uverbs rdma_rxe rdma_ucm; do
  modprobe --show-depends -d "$kernel" -S "$release" "$module" | awk '/^insmod/ { print $2 }'
done | awk '!seen[$0]++' | while read -r module; do
  cp "$module" "$files/modules/"
  basename "$module"
done >"$files/modules/order"
(cd "$files" && find . | cpio -o -H newc --quiet) >"$guest/files.cpio"

# --- run ----------------------------------------------------------------------------------------------
# Where instructions are emulated, `rep movsb` moves single bytes, and another processor may see a word
# half written; no hardware does that. Without these flags the kernel copies words.
accelerator=tcg,thread=multi processor=max,erms=off,fsrm=off
# A writable /dev/kvm without these flags may hang the guest without a word.
if [ -w /dev/kvm ] && grep -qE '^flags.*\b(vmx|svm)\b' /proc/cpuinfo; then
  accelerator=kvm processor=max
fi
say "booting $image ($accelerator), tests: ${tests[*]##*/}"
log=$guest/console.log
timeout "$limit_s" nice qemu-system-x86_64 -accel "$accelerator" -cpu "$processor" -smp 2 -m 1024 -machine q35 \
  -nodefaults -no-user-config -display none -serial stdio -no-reboot \
  -kernel "$kernel/vmlinux" -initrd "$guest/files.cpio" \
  -append "console=ttyS0 quiet panic=-1 rdinit=/init" </dev/null | stdbuf -oL tr -d '\r' | tee "$log" || true

if ! ended=$(grep -ao 'TEST-EXIT rc=[0-9]*' "$log"); then
  die "the guest did not finish within $limit_s s (see $log)"
fi
[ "$ended" = "TEST-EXIT rc=0" ] || die "the tests failed in the guest: $ended (see $log)"
