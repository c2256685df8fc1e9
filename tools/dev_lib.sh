# Functions of ./dev. Sourced, with the checkout's root as the working directory.

# What a build of the command needs, and what tests, sanitizers and lints need beside it.
BUILD_PACKAGES=(
  build-essential g++ cmake ninja-build pkg-config
  libfmt-dev libsimdjson-dev libcli11-dev libssl-dev libre2-dev libxxhash-dev libhwy-dev liburing-dev
)
TEST_PACKAGES=(
  git libgtest-dev libgmock-dev libopenmpi-dev openmpi-bin
  clang clang-format clang-tidy
  python3 python3-venv strace
)

usage() {
  cat <<'TEXT'
./dev demo    build lading, write a sample checkpoint, inspect it, load it as eight ranks and verify it
./dev test    build and run every test; ends with "N passed, M failed, K skipped"

./dev setup   install what is needed: system packages, and .venv for Python
./dev build   leave the command at build/lading
./dev lint    formatting, clang-tidy and the repository's own rules
./dev fuzz    fuzz the readers (./dev fuzz --help)
./dev bench   measure loading, peers side by side; the results go to bench/results
./dev zoo     load 40 architectures of transformers, and compare every tensor (./dev zoo --help)
./dev compat  the front's tests on other versions of torch and transformers (./dev compat --help)
./dev docs    build the documentation's site into build/docs-site, and check its links
./dev wheel   the Python package, for other machines too: sdist and wheel go to build/wheels
TEXT
}

say() { printf '\033[1m==> %s\033[0m\n' "$*" >&2; }
die() { printf 'dev: %s\n' "$*" >&2; exit 1; }

missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed$' || echo "$package"
  done
}

install_packages() {
  local missing
  missing=$(missing_packages "$@")
  [ -n "$missing" ] || return 0
  command -v apt-get >/dev/null || die "these packages are missing, and there is no apt-get to install them: $(echo $missing)"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "these packages are missing, and installing them needs root or sudo: $(echo $missing)"
    as_root=(sudo)
  fi
  say "installing $(echo $missing)"
  "${as_root[@]}" apt-get update -qq || say "apt-get update failed; trying with the lists that are there"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null || true
  missing=$(missing_packages "$@")
  [ -z "$missing" ] || die "these packages could not be installed: $(echo $missing)"
}

setup_build() { install_packages "${BUILD_PACKAGES[@]}"; }

setup_system() {
  install_packages "${BUILD_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
  # The sanitizers' runtime is a package of its own, named after clang's version.
  local major
  major=$(clang -dumpversion | cut -d. -f1)
  install_packages "libclang-rt-$major-dev"
}

# .venv is rebuilt only when what it should hold changes.
setup_python() {
  local wanted
  wanted=$(cat requirements-deepspeed.txt requirements-dev.txt | sha256sum | cut -d' ' -f1)
  [ "$(cat .venv/.wanted 2>/dev/null)" = "$wanted" ] && return 0
  say "setting up .venv"
  python3 -m venv --clear .venv
  local pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check)
  "${pip[@]}" -r requirements-dev.txt || die "Python packages could not be installed; see above which"
  DS_BUILD_OPS=0 DS_ACCELERATOR=cpu "${pip[@]}" --no-build-isolation -r requirements-deepspeed.txt \
    || die "DeepSpeed could not be installed; see above why"
  echo "$wanted" >.venv/.wanted
}

# The site's packages have an environment of their own: they must not change what tests run with.
setup_docs() {
  local wanted venv=build/docs-venv
  wanted=$(sha256sum requirements-docs.txt | cut -d' ' -f1)
  [ "$(cat $venv/.wanted 2>/dev/null)" = "$wanted" ] && return 0
  say "setting up $venv"
  python3 -m venv --clear $venv
  $venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt \
    || die "Python packages could not be installed; see above which"
  echo "$wanted" >$venv/.wanted
}

# configure_and_build PRESET [cmake --build arguments]
configure_and_build() {
  local preset=$1
  shift
  say "building ($preset)"
  local log=build/$preset.configure.log
  mkdir -p build
  cmake --preset "$preset" >"$log" 2>&1 || { cat "$log" >&2; die "configuring failed"; }
  cmake --build --preset "$preset" "$@" >"build/$preset.build.log" 2>&1 \
    || { cat "build/$preset.build.log" >&2; die "building failed"; }
}

# build_release [cmake --build arguments]
build_release() {
  configure_and_build release "$@"
  ln -sf release/lading build/lading
}

run_demo() {
  say "writing a sample checkpoint, inspecting it, loading it as eight ranks and verifying it"
  build/lading demo --dir build/demo
  cat <<'TEXT'

Try next:
  build/lading inspect build/demo --tensors     every tensor
  build/lading inspect build/demo --json        for programs
  build/lading plan build/demo --mesh dp=4,tp=2 --strategy fsdp2+tp --rank 3 --tensors
                                                what one rank would load
  build/lading plan build/demo --mesh dp=4,tp=2 --strategy fsdp2+tp --explain model.norm.weight
                                                where a tensor comes from, and why
  build/lading load build/demo --mesh dp=4 --strategy zero3 --ledger build/ledger.json
  build/lading verify build/demo build/ledger.json
                                                another layout, the same digests
  build/lading inspect PATH                     your own checkpoint: a file, a directory, or org/name
                                                from the Hugging Face cache (add --verify-hash)
TEXT
}
