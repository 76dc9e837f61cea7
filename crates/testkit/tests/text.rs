//! Checks that the code in three languages treats the same characters of foreign text as unsafe.

use std::collections::BTreeSet;
use std::process::Command;

use dayfly_protocol::text::is_unsafe;

/// Prints the code points that the Python package escapes.
const LIST_PYTHON: &str = "
import runpy, sys
print(*runpy.run_path(sys.argv[1])['_UNSAFE'])
";

fn unsafe_in_rust() -> BTreeSet<u32> {
    ('\0'..=char::MAX).filter(|c| is_unsafe(*c)).map(u32::from).collect()
}

fn unsafe_in_python() -> BTreeSet<u32> {
    // Make exports it empty where nobody set it.
    let named = std::env::var("DAYFLY_PYTHON").ok().filter(|name| !name.is_empty());
    let python = named.unwrap_or_else(|| "python3".into());
    let output = Command::new(python)
        .args(["-c", LIST_PYTHON])
        .arg(dayfly_testkit::root().join("bindings/python/python/dayfly/_text.py"))
        .output()
        .expect("Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let listed = String::from_utf8(output.stdout).expect("Python prints numbers");
    listed
        .split_whitespace()
        .map(|code| code.parse().expect("a number"))
        .collect()
}

/// Returns the code points in the character class of the page's regular expression: `\uXXXX`, and ranges of them.
fn unsafe_in_page() -> BTreeSet<u32> {
    let page = dayfly_testkit::root().join("crates/manager/page/page.js");
    let page = std::fs::read_to_string(page).expect("the page's script is there");
    let (_, rest) = page.split_once("const UNSAFE = /[").expect("the page has the class");
    let (class, _) = rest.split_once("]/g;").expect("the class ends");
    let mut found = BTreeSet::new();
    let mut ranges = class.split("\\u");
    assert_eq!(ranges.next(), Some(""), "every character is escaped");
    let mut begun = None;
    for code in ranges {
        let (digits, is_begin) = code.strip_suffix('-').map_or((code, false), |digits| (digits, true));
        let end = u32::from_str_radix(digits, 16).expect("four digits");
        if is_begin {
            begun = Some(end);
        } else {
            found.extend(begun.take().unwrap_or(end)..=end);
        }
    }
    found
}

#[test]
fn unsafe_characters_agree_in_rust_python_and_page() {
    let rust = unsafe_in_rust();
    assert_eq!(unsafe_in_page(), rust);
    // Python also shows texts of several lines.
    let lines = BTreeSet::from(['\n', '\t'].map(u32::from));
    assert_eq!(unsafe_in_python(), &rust - &lines);
}
