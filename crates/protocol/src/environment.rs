//! The packages that a Python worker can import in addition to the standard library.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::error::{Code, Failure};
use crate::ids::EnvironmentHash;

/// Most requirements of an environment.
pub const MAX_REQUIREMENTS: usize = 2_000;
/// Most bytes of all requirements together.
pub const MAX_REQUIREMENT_BYTES: usize = 1 << 20;
/// The package that every worker has, in its node's version.
const PROVIDED_PACKAGE: &str = "dayfly";

/// A set of Python packages. A node builds it once and shares it among all functions that name the same set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Environment {
    /// `major.minor` of its Python. Empty for the client's version, or for the node's own if the code is source.
    #[schema(max_length = 16)]
    pub python: String,
    /// One package each, as a line of a requirements file: a name with optional extras, versions, marker and hashes.
    /// The node's `uv` installs wheels from its configured index. Options, paths and URLs are refused.
    #[schema(max_items = 2_000)]
    pub requirements: Vec<String>,
}

impl Environment {
    /// Returns the hash that identifies the environment for this Python (`major.minor`). The order of requirements does
    /// not matter.
    pub fn hash(&self, python: &str) -> EnvironmentHash {
        let mut lines: Vec<&str> = self.requirements.iter().map(|line| line.trim()).collect();
        lines.sort_unstable();
        lines.dedup();
        let mut hash = Sha256::new();
        for part in std::iter::once(python).chain(lines) {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        EnvironmentHash(hash.finalize().into())
    }

    /// Refuses a malformed environment, and one that would make a node fetch from anywhere but its own index.
    ///
    /// # Errors
    /// `EnvironmentFailed`, with the requirement in question.
    pub fn check(&self) -> Result<(), Failure> {
        if !self.python.is_empty() {
            let parts: Vec<&str> = self.python.split('.').collect();
            let is_number = |part: &&str| matches!(part.len(), 1..=4) && part.bytes().all(|byte| byte.is_ascii_digit());
            if parts.len() != 2 || !parts.iter().all(is_number) {
                return Err(refused(format!(
                    "the environment's Python version is `{}`; write it as `3.12`",
                    shown(&self.python)
                )));
            }
        }
        let bytes: usize = self.requirements.iter().map(String::len).sum();
        if self.requirements.len() > MAX_REQUIREMENTS || bytes > MAX_REQUIREMENT_BYTES {
            return Err(Failure::new(
                Code::TooLarge,
                format!(
                    "the environment has {} requirements in {bytes} bytes; {MAX_REQUIREMENTS} in {MAX_REQUIREMENT_BYTES} bytes are \
                     allowed: name fewer, omit the hashes, or use a container image",
                    self.requirements.len()
                ),
            ));
        }
        self.requirements.iter().try_for_each(|line| check_line(line))
    }
}

/// Refuses lines that must not reach `uv`. `uv` itself checks the rest of the syntax.
fn check_line(line: &str) -> Result<(), Failure> {
    let not_one = |why: &str| {
        Err(refused(format!(
            "`{}` is not a requirement: {why}; write a package's name with its versions, as in `numpy>=2,<3`",
            shown(line)
        )))
    };
    let text = line.trim();
    if text.chars().any(|letter| letter.is_control()) {
        return not_one("it has a line break or another control character");
    }
    let end = text.find(|letter: char| !(letter.is_ascii_alphanumeric() || "._-".contains(letter)));
    let (name, rest) = text.split_at(end.unwrap_or(text.len()));
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    if !edge(name.as_bytes().first()) || !edge(name.as_bytes().last()) {
        return not_one("it does not begin with a package's name (options and paths are not allowed)");
    }
    if name.replace(['_', '.'], "-").eq_ignore_ascii_case(PROVIDED_PACKAGE) {
        return not_one("every node provides this package in its own version");
    }
    let mut words = rest.split(" --hash=");
    let specifiers = words.next().unwrap_or_default();
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || " \t[](),.<>=!~*+-_;'\"".contains(letter);
    if !specifiers.chars().all(allowed) || specifiers.contains(" -") {
        return not_one(
            "only extras, versions and a marker may follow the name (packages come from the node's own index)",
        );
    }
    let is_hash = |word: &str| {
        word.trim().split_once(':').is_some_and(|(kind, digits)| {
            kind.bytes().all(|byte| byte.is_ascii_alphanumeric())
                && !digits.is_empty()
                && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    };
    match words.all(is_hash) {
        true => Ok(()),
        false => not_one("a hash is written as `--hash=sha256:` and hexadecimal digits"),
    }
}

fn refused(text: String) -> Failure {
    Failure::new(Code::EnvironmentFailed, text)
}

/// The beginning of a foreign text, escaped for a message.
fn shown(text: &str) -> String {
    text.chars().take(100).collect::<String>().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&str]) -> Environment {
        Environment {
            python: String::new(),
            requirements: lines.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn valid_requirements_are_accepted() {
        for line in [
            "numpy",
            "numpy==2.4.6",
            " scikit-learn >= 1.5, < 2 ",
            "requests[security,socks]~=2.32",
            "tomli>=1.1; python_version < '3.11' and sys_platform == \"linux\"",
            "idna==3.20 --hash=sha256:00ff --hash=sha384:12ab",
            "zope.interface===7.0",
            "torch==2.8.0+cpu",
        ] {
            assert_eq!(of(&[line]).check(), Ok(()), "{line}");
        }
    }

    #[test]
    fn requirement_from_another_source_is_refused() {
        for line in [
            "",
            "-r /etc/passwd",
            "--index-url https://elsewhere.example",
            "numpy --index-url https://elsewhere.example",
            "numpy @ https://elsewhere.example/numpy.whl",
            "numpy@file:///tmp/numpy.whl",
            "./numpy",
            "/tmp/numpy-1.whl",
            "../x",
            "https://elsewhere.example/x.whl",
            "git+https://elsewhere.example/x",
            "numpy\n-r other",
            "numpy\\",
            "numpy ${HOME}",
            "numpy # comment",
            "numpy==1 --hash=sha256:zz",
            "numpy==1 --hash=md5",
            "dayfly",
            "DayFly==0.1",
            "numpy-",
        ] {
            let failure = of(&[line]).check().expect_err(line);
            assert_eq!(failure.code, Code::EnvironmentFailed, "{line}");
        }
    }

    #[test]
    fn too_many_or_too_long_requirements_are_refused() {
        let many = vec!["numpy"; MAX_REQUIREMENTS + 1];
        assert_eq!(of(&many).check().unwrap_err().code, Code::TooLarge);
        let long = format!("numpy=={}", "1".repeat(MAX_REQUIREMENT_BYTES));
        assert_eq!(of(&[&long]).check().unwrap_err().code, Code::TooLarge);
    }

    #[test]
    fn python_other_than_major_minor_is_refused() {
        let python = |python: &str| Environment {
            python: python.into(),
            requirements: Vec::new(),
        };
        assert_eq!(python("3.12").check(), Ok(()));
        for wrong in ["3", "3.12.1", "3.x", "python3.12", "/usr/bin/python3", "3.", "12345.1"] {
            assert!(python(wrong).check().is_err(), "{wrong}");
        }
    }

    #[test]
    fn environment_hash_covers_requirements_and_python() {
        let two = of(&["a==1", "b==2"]);
        assert_eq!(two.hash("3.11"), of(&["b==2 ", "a==1", "a==1"]).hash("3.11"));
        assert_ne!(two.hash("3.11"), two.hash("3.12"));
        assert_ne!(two.hash("3.11"), of(&["a==1"]).hash("3.11"));
        assert_ne!(of(&["ab"]).hash("3.11"), of(&["a", "b"]).hash("3.11"));
    }
}
