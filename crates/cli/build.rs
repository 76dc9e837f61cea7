//! Embeds the build information for `dayfly version`.

use std::process::Command;

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let compiler = Command::new(variable("RUSTC")).arg("--version").output();
    let compiler = compiler.map_or_else(
        |_| String::new(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    );
    println!("cargo:rustc-env=DAYFLY_BUILT_FOR={}", variable("TARGET"));
    println!("cargo:rustc-env=DAYFLY_BUILT_AS={}", variable("PROFILE"));
    println!("cargo:rustc-env=DAYFLY_BUILT_BY={}", compiler.trim());
    println!("cargo:rerun-if-changed=build.rs");
}
