//! Checks that all linked third-party code may be distributed under this project's licence.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

/// Licences that require only their text and their authors' names.
const ACCEPTED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Returns whether accepted licences alone satisfy an SPDX expression. Older crates write `A/B` for `A OR B`.
fn accepted(expression: &str) -> bool {
    let expression = expression.replace(['(', ')'], "").replace('/', " OR ");
    // AND binds tighter without brackets. Dropping brackets can only make a mixed expression stricter.
    expression
        .split(" OR ")
        .any(|option| option.split(" AND ").all(|name| ACCEPTED.contains(&name.trim())))
}

/// Returns cargo's metadata of each package that is built for this platform, or used to build and test it.
fn packages(platform: &str) -> Vec<Value> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--locked",
            "--format-version",
            "1",
            "--filter-platform",
            platform,
        ])
        .current_dir(dayfly_testkit::root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    metadata["packages"]
        .as_array()
        .expect("metadata lists packages")
        .clone()
}

#[test]
fn every_dependency_has_a_compatible_licence() {
    let packages = packages(&format!("{}-unknown-linux-gnu", std::env::consts::ARCH));
    let refused: Vec<String> = packages
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(accepted))
        .map(|package| format!("{} {}: {}", package["name"], package["version"], package["license"]))
        .collect();
    assert!(
        refused.is_empty(),
        "licences that nobody has accepted yet:\n{}",
        refused.join("\n")
    );
}

/// Returns the list as Markdown. It contains no versions, so that it changes only with the packages and their licences.
fn third_party_list(packages: &[Value]) -> String {
    let rows: BTreeSet<String> = packages
        .iter()
        // Packages of the workspace have no source.
        .filter(|package| package["source"].is_string())
        .map(|package| {
            let text = |field: &str| package[field].as_str().unwrap_or("unknown");
            format!("| {} | {} |", text("name"), text("license"))
        })
        .collect();
    format!(
        "# Third-party crates\n\nWhat Dayfly is built of on Linux, or built and tested with, and under which licences. \
         Cargo.lock has the versions.\nGenerated from what cargo says: `make generate` rewrites it.\n\n| crate | licence |\n|---|---|\n{}\n",
        Vec::from_iter(rows).join("\n")
    )
}

#[test]
fn committed_third_party_list_matches_cargo() {
    // For a fixed platform, so that the list is the same on every machine.
    let now = third_party_list(&packages("x86_64-unknown-linux-gnu"));
    let path = dayfly_testkit::root().join("THIRD-PARTY.md");
    if std::env::var_os("DAYFLY_REGENERATE").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == now,
        "THIRD-PARTY.md is not what cargo says; rewrite it with: make generate"
    );
}

#[test]
fn licence_choice_needs_one_and_conjunction_all() {
    assert!(accepted("MIT OR GPL-3.0"));
    assert!(accepted("MIT/Apache-2.0"));
    assert!(accepted("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(!accepted("MIT AND GPL-3.0"));
    assert!(!accepted("GPL-3.0"));
}
