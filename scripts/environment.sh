# Sourced by every script: sets directories and defines output functions. Requires no environment variable.
# shellcheck shell=bash

set -euo pipefail
exec </dev/null # no command may wait for input

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$ROOT"

if [ -z "${DAYFLY_CACHE:-}" ]; then
    DAYFLY_CACHE=${HOME:-/nonexistent}/.cache/dayfly
    # Fall back if the home directory is not writable, as in a minimal container or for a build user.
    mkdir -p "$DAYFLY_CACHE" 2>/dev/null && [ -w "$DAYFLY_CACHE" ] || DAYFLY_CACHE=${TMPDIR:-/tmp}/dayfly-cache-$(id -u)
fi
mkdir -p "$DAYFLY_CACHE"
DAYFLY_CACHE=$(cd "$DAYFLY_CACHE" && pwd -P)
export DAYFLY_CACHE
# One target directory per checkout: cargo distinguishes them only by file times, and would run the other's programs.
CHECKOUT_KEY=$(printf '%s' "$ROOT" | sha256sum | cut -c1-12)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$DAYFLY_CACHE/target-$CHECKOUT_KEY}
export DAYFLY_BIN_DIR=${DAYFLY_BIN_DIR:-$CARGO_TARGET_DIR/release}
# The built web console, which the manager embeds if it is there.
CONSOLE_DIST=$DAYFLY_CACHE/console-$CHECKOUT_KEY/dist
use_console() {
    if [ -f "$CONSOLE_DIST/index.html" ]; then export DAYFLY_CONSOLE=${DAYFLY_CONSOLE-$CONSOLE_DIST}; fi
}
use_console
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
export CARGO_TERM_PROGRESS_WHEN=never
# A newly installed rustup is not on the PATH of this shell yet.
[ -d "${CARGO_HOME:-${HOME:-}/.cargo}/bin" ] && PATH=$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin
export PATH

say() { printf '%s\n' "$*" >&2; }
die() {
    printf '\ndayfly: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '        %s\n' "$@" >&2
    exit 1
}

# Runs a command under a title, prints its duration in seconds, and returns its exit status.
step() {
    local title=$1 start=$SECONDS status=0
    shift
    say "==> $title"
    "$@" || status=$?
    if [ "$status" -eq 0 ]; then
        say "    $title: ok, $((SECONDS - start)) s"
    else
        say "    $title: FAILED with status $status after $((SECONDS - start)) s"
    fi
    return "$status"
}

# Prints the files of this checkout that git tracks or does not ignore; without git, as in a source archive, all files.
sources() {
    if git -C "$ROOT" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git -C "$ROOT" ls-files --cached --others --exclude-standard -- "$@" | while IFS= read -r path; do
            [ -f "$path" ] && printf '%s\n' "$path"
        done
    else
        find "${@:-.}" -type f -not -path '*/.git/*' -not -path './build/*' -not -path '*/__pycache__/*' | sed 's#^\./##'
    fi
    return 0
}

# The packages that link DataFusion. They are built by themselves: together with the others, they would add features to
# dependencies that both have, and the programs would be compiled twice.
FRAMES=(-p dayfly-frame -p dayfly-frames-python)
WITHOUT_FRAMES=(--exclude dayfly-frame --exclude dayfly-frames-python)

# Builds the wheel of the package in a directory, and installs it into the given Python.
install_wheel() {
    local python=$1 package=$2 out=$3
    rm -rf "$out"
    PATH=$(dirname "$python"):$PATH "$python" -m maturin build --release --locked --quiet --compatibility linux \
        --manifest-path "$package/Cargo.toml" --interpreter "$python" --out "$out"
    "$python" -m pip install --quiet --no-deps --no-index --force-reinstall "$out"/*.whl
}

# Sets TEST_PROFILE, cargo's options for tests and lints. They use the profile of the programs, so that both share
# their dependencies, which are most of what a clean machine compiles. Only this workspace's crates differ: they have
# assertions and line numbers, and are optimised only where they move bytes, train models or simulate.
set_test_profile() {
    local file=$CARGO_TARGET_DIR/test-profile.toml name level
    mkdir -p "$CARGO_TARGET_DIR"
    for name in $(sources | grep '/Cargo.toml$' | xargs -d '\n' grep -hm1 '^name = ' | cut -d'"' -f2); do
        level=0
        [[ $name =~ -(comm|fabric|harvest|protocol|rendezvous|simulate)$ ]] && level=1
        printf '[profile.release.package.%s]\nopt-level = %s\ndebug = "line-tables-only"\nstrip = false\n' "$name" "$level"
        printf 'debug-assertions = true\noverflow-checks = true\n\n'
    done >"$file.$$"
    mv -f "$file.$$" "$file"
    TEST_PROFILE=(--release --config "$file")
}
