# Sourced by every script here: where things are, and how the scripts speak. Works with no variable set.
# shellcheck shell=bash

set -euo pipefail
exec </dev/null # nothing may ever wait for an answer

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$ROOT"

if [ -z "${DAYFLY_CACHE:-}" ]; then
    DAYFLY_CACHE=${HOME:-/nonexistent}/.cache/dayfly
    # A home that cannot be written to (a bare container, a build user) must not stop anybody.
    mkdir -p "$DAYFLY_CACHE" 2>/dev/null && [ -w "$DAYFLY_CACHE" ] || DAYFLY_CACHE=${TMPDIR:-/tmp}/dayfly-cache-$(id -u)
fi
mkdir -p "$DAYFLY_CACHE"
DAYFLY_CACHE=$(cd "$DAYFLY_CACHE" && pwd -P)
export DAYFLY_CACHE
# One for each checkout: cargo tells two apart by the times of their files only, and runs the programs of either in both.
CHECKOUT_KEY=$(printf '%s' "$ROOT" | sha256sum | cut -c1-12)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$DAYFLY_CACHE/target-$CHECKOUT_KEY}
export DAYFLY_BIN_DIR=${DAYFLY_BIN_DIR:-$CARGO_TARGET_DIR/release}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
export CARGO_TERM_PROGRESS_WHEN=never
# A rustup that was installed a moment ago is not on the path of this shell yet.
[ -d "${CARGO_HOME:-${HOME:-}/.cargo}/bin" ] && PATH=$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin
export PATH

say() { printf '%s\n' "$*" >&2; }
die() {
    printf '\ndayfly: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '        %s\n' "$@" >&2
    exit 1
}

# Runs a command under a title and says how long it took.
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

# The files of this checkout that are or could be committed; a source archive has no git and is all of them.
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
