//! Functions as read from files and command lines.

use std::path::Path;

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::tasks::MAX_BODY_BYTES;

/// Maximum number of names in an error.
const SHOWN_NAMES: usize = 8;
/// Maximum file size in bytes. A request contains the file in base64, and its text for display.
const MAX_BYTES: usize = MAX_BODY_BYTES / 3;

fn wrong(text: String) -> Failure {
    Failure::new(Code::InvalidRequest, text)
}

/// Reads a file's bytes.
pub fn bytes(file: &Path) -> Result<Vec<u8>, Failure> {
    let name = file.display();
    let bytes = std::fs::read(file).map_err(|error| wrong(format!("{name} cannot be read: {error}")))?;
    match bytes.len() > MAX_BYTES {
        true => Err(Failure::new(
            Code::TooLarge,
            format!("{name} has {} bytes; code of {MAX_BYTES} is taken", bytes.len()),
        )),
        false => Ok(bytes),
    }
}

/// Reads a file's text.
pub fn text(file: &Path) -> Result<String, Failure> {
    String::from_utf8(bytes(file)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        wrong(format!("{} is no text in UTF-8: byte {at} is none", file.display()))
    })
}

fn is_letter(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Errors if the text of a Python module never mentions `entry`, and so cannot define it. Only workers can check the
/// definition itself.
pub fn defines(text: &str, file: &str, entry: &str) -> Result<(), Failure> {
    let begins = entry.starts_with(|c: char| is_letter(c) && !c.is_numeric());
    if !begins || !entry.chars().all(is_letter) {
        return Err(wrong(format!("`{entry:.100}` is no name of a function in {file}")));
    }
    let code = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let said = |line: &str| line.split(|c: char| !is_letter(c)).any(|word| word == entry) || line.contains("import *");
    if code.clone().any(said) {
        return Ok(());
    }
    let name_of = |line: &'_ str| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        let name = line.strip_prefix("def ")?.trim_start();
        name.split(|c: char| !is_letter(c)).next().map(str::to_owned)
    };
    let mut names: Vec<String> = code.filter_map(name_of).collect();
    names.truncate(SHOWN_NAMES);
    Err(wrong(match names.is_empty() {
        true => format!("{file} defines no `{entry}`, nor any other function"),
        false => format!("{file} defines no `{entry}`; it has {}", names.join(", ")),
    }))
}

/// Splits a text into words as a shell does, without expansions.
pub fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = text.chars();
    while let Some(c) = letters.next() {
        match c {
            ' ' | '\t' | '\n' | '\r' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next().ok_or("a quote has no end")? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next().ok_or("a quote has no end")? {
                        '"' => break,
                        '\\' => match letters.next().ok_or("a quote has no end")? {
                            c @ ('"' | '\\') => word.push(c),
                            c => word.extend(['\\', c]),
                        },
                        c => word.push(c),
                    }
                }
            }
            '\\' => {
                let next = letters.next().ok_or("there is nothing behind the last backslash")?;
                word.get_or_insert_default().push(next);
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Returns the entries of a requirements file: without comments and empty lines, and with continuation lines joined.
pub fn requirements(text: &str) -> Vec<String> {
    let text = text.replace("\r\n", "\n").replace("\\\n", " ");
    let line = |line: &str| {
        let comment = line
            .match_indices('#')
            .map(|(at, _)| at)
            .find(|at| line[..*at].chars().next_back().is_none_or(char::is_whitespace));
        let said = &line[..comment.unwrap_or(line.len())];
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    text.lines().map(line).filter(|line| !line.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_without_expansion() {
        let split = |text: &str| words(text).unwrap();
        assert_eq!(split(" --size {size}\t{files} "), ["--size", "{size}", "{files}"]);
        assert_eq!(split(r#"'a b'c "d \" \n $e" \ f"#), ["a bc", "d \" \\n $e", " f"]);
        assert_eq!(split("'' \"\""), ["", ""]);
        assert_eq!(split(""), [""; 0]);
        for wrong in ["'a", "\"a", "a\\", "\"a\\"] {
            assert!(words(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn module_without_the_name_does_not_define_it() {
        let text =
            "import math\n# volume\nasync def area(a, b):\n    return a * b\n\ndef perimeter(a): ...\nsides = area\n";
        for said in ["area", "perimeter", "sides", "math"] {
            assert_eq!(defines(text, "shapes.py", said), Ok(()), "{said}");
        }
        let refused = |entry: &str| defines(text, "shapes.py", entry).unwrap_err().message;
        assert_eq!(
            refused("volume"),
            "shapes.py defines no `volume`; it has area, perimeter"
        );
        assert_eq!(refused("are"), "shapes.py defines no `are`; it has area, perimeter");
        for no_name in ["", "a b", "2", "a.b", "a()"] {
            assert!(refused(no_name).contains("is no name"), "{no_name}");
        }
        assert_eq!(defines("from shapes import *", "all.py", "volume"), Ok(()));
        let none = defines("", "empty.py", "f").unwrap_err().message;
        assert!(none.ends_with("nor any other function"), "{none}");
    }

    #[test]
    fn requirements_are_lines_without_comments() {
        let text = "# all\nnumpy>=2  # newest\n\nscipy==1.15.0 \\\n    --hash=sha256:00\r\na#b\n";
        let expected = ["numpy>=2", "scipy==1.15.0 --hash=sha256:00", "a#b"];
        assert_eq!(requirements(text), expected);
    }
}
