//! Checks the layers of ARCHITECTURE.md: dependencies go in one direction only. This keeps an audit of the hot path
//! limited to the client, fabric and executor crates.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Each crate's level. A crate depends on lower levels only.
const LEVELS: &[(&str, u8)] = &[
    ("dayfly-protocol", 0),
    ("dayfly-fabric", 1),
    ("dayfly-lease", 1),
    ("dayfly-manager-connection", 1),
    ("dayfly-harvest", 1),
    ("dayfly-sandbox", 1),
    ("dayfly-telemetry", 1),
    ("dayfly-storage", 1),
    ("dayfly-scheduling", 1),
    ("dayfly-client", 2),
    ("dayfly-command", 2),
    ("dayfly-executor", 2),
    ("dayfly-rendezvous", 2),
    ("dayfly-simulate", 2),
    ("dayfly-store", 2),
    ("dayfly-comm", 3),
    ("dayfly-durable-tasks", 3),
    ("dayfly-endpoint", 3),
    ("dayfly-manager", 4),
    ("dayfly-node", 4),
    ("dayfly-frame", 4),
    ("dayfly-mpi", 4),
    ("dayfly-mpi-abi", 4),
    ("dayfly-frames-python", 5),
    ("dayfly-bench", 4),
    ("dayfly-cli", 5),
    ("dayfly-c", 5),
    ("dayfly-python", 5),
    ("dayfly-examples", 6),
    ("dayfly-testkit", 6),
];

/// Third-party crates that a crate must not use: the hot path is synchronous and linked into other programs, and policy
/// crates have neither I/O nor a clock.
const FORBIDDEN: &[(&str, &[&str])] = &[
    (
        "dayfly-protocol",
        &["tokio", "axum", "rustix", "libc", "ureq", "tracing", "rusqlite"],
    ),
    (
        "dayfly-lease",
        &["tokio", "axum", "rustix", "libc", "ureq", "tracing", "rusqlite"],
    ),
    (
        "dayfly-scheduling",
        &["tokio", "axum", "rustix", "libc", "ureq", "tracing", "rusqlite"],
    ),
    (
        "dayfly-harvest",
        &["tokio", "axum", "rustix", "libc", "ureq", "tracing", "rusqlite"],
    ),
    (
        "dayfly-simulate",
        &["tokio", "axum", "rustix", "libc", "ureq", "tracing", "rusqlite"],
    ),
    ("dayfly-fabric", &["tokio", "axum", "tracing"]),
    ("dayfly-client", &["tokio", "axum", "tracing"]),
    ("dayfly-executor", &["tokio", "axum", "tracing"]),
];

/// Dependencies of a crate by kind: those linked into it, and those of its tests only.
struct Dependencies {
    linked: BTreeSet<String>,
    tests: BTreeSet<String>,
}

fn workspace() -> BTreeMap<String, Dependencies> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(dayfly_testkit::root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("metadata lists packages");
    packages
        .iter()
        .map(|package| {
            let name = package["name"].as_str().expect("a package has a name").to_owned();
            let mut dependencies = Dependencies {
                linked: BTreeSet::new(),
                tests: BTreeSet::new(),
            };
            for dependency in package["dependencies"]
                .as_array()
                .expect("a package lists its dependencies")
            {
                let of = dependency["name"].as_str().expect("a dependency has a name").to_owned();
                match dependency["kind"].as_str() {
                    Some("dev") => dependencies.tests.insert(of),
                    _ => dependencies.linked.insert(of),
                };
            }
            (name, dependencies)
        })
        .collect()
}

fn level(name: &str) -> u8 {
    let found = LEVELS.iter().find(|(crate_name, _)| *crate_name == name);
    found
        .unwrap_or_else(|| panic!("{name} has no level yet: add it to LEVELS here and to ARCHITECTURE.md"))
        .1
}

#[test]
fn every_crate_depends_on_lower_levels_only() {
    let mut wrong = Vec::new();
    for (name, dependencies) in workspace() {
        let own = level(&name);
        for other in dependencies.linked.iter().filter(|other| other.starts_with("dayfly-")) {
            if level(other) >= own {
                wrong.push(format!(
                    "{name} (level {own}) depends on {other} (level {})",
                    level(other)
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "dependencies must flow one way:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn nothing_but_tests_links_the_testkit() {
    for (name, dependencies) in workspace() {
        assert!(
            !dependencies.linked.contains("dayfly-testkit"),
            "{name} links dayfly-testkit, which is for tests"
        );
        for other in dependencies.tests.iter().filter(|other| other.starts_with("dayfly-")) {
            level(other);
        }
    }
}

#[test]
fn hot_path_links_no_runtime() {
    let workspace = workspace();
    for (name, forbidden) in FORBIDDEN {
        let Some(dependencies) = workspace.get(*name) else {
            continue;
        };
        for other in *forbidden {
            assert!(
                !dependencies.linked.contains(*other),
                "{name} must not depend on {other}"
            );
        }
    }
}

#[test]
fn cryptography_has_one_provider() {
    let lock = std::fs::read_to_string(dayfly_testkit::root().join("Cargo.lock")).expect("Cargo.lock is committed");
    assert!(
        !lock.contains("name = \"aws-lc-rs\""),
        "rustls is to use ring alone; something pulled in aws-lc-rs"
    );
    assert!(
        !lock.contains("name = \"openssl-sys\""),
        "no crate may link the system's OpenSSL"
    );
}

/// Returns the dependencies that are built for these packages together, each with its version and features.
fn built_for(packages: &[&str]) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--edges",
            "normal,build",
            "--prefix",
            "none",
            "--format",
            "{p} {f}",
        ])
        .args(packages.iter().flat_map(|package| ["-p", package]))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines
        .lines()
        .map(|line| line.trim_end_matches(" (*)").to_owned())
        .collect()
}

#[test]
fn main_program_carries_no_fonts_and_no_plotting() {
    let built = built_for(&["dayfly-cli"]);
    for name in ["dayfly-bench", "notosans", "resvg"] {
        assert!(
            built.iter().all(|line| line.split(' ').next() != Some(name)),
            "dayfly-cli links {name}, which belongs to the program dayfly-bench alone"
        );
    }
}

#[test]
fn programs_and_python_module_share_one_build() {
    let programs = built_for(&["dayfly-cli", "dayfly-bench", "dayfly-executor", "dayfly-c"]);
    let name = |line: &str| line.split(' ').take(2).map(str::to_owned).collect::<Vec<_>>();
    let shared: BTreeSet<_> = programs.iter().map(|line| name(line)).collect();
    for line in built_for(&["dayfly-python"]) {
        assert!(
            programs.contains(&line) || !shared.contains(&name(&line)),
            "the Python module has `{line}`, and the programs have other features of it: name those in bindings/python/Cargo.toml"
        );
    }
}
