//! The entry point of a container image as a function.
//!
//! The function's code is a JSON array of words that follow the image's entry point. Braces in a word enclose the name
//! of an argument; literal braces are doubled. No shell interprets the words. An argument may be a text, a number or a
//! boolean. If a word consists of one argument only, the argument may also be a list of these and becomes one word per
//! element.

use std::collections::HashMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::tasks::JsonCall;

/// The environment variable that gives workers their image's entry point, as [`Start`] in JSON.
pub const VARIABLE: &str = "DAYFLY_ENTRY_POINT";
/// Most words of a function, and of a call.
const MAX_WORDS: usize = 10_000;

/// How the image starts its program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Start {
    /// The program and its first words.
    pub entry_point: Vec<String>,
    /// Default words that follow the entry point.
    pub command: Vec<String>,
    /// Working directory; empty for the worker's own.
    pub directory: String,
}

impl Start {
    /// Returns the program and all its words. A function's own words replace the image's command, as in container
    /// runtimes.
    pub fn line(&self, words: Option<Vec<String>>) -> Vec<String> {
        let last = words.unwrap_or_else(|| self.command.clone());
        self.entry_point.iter().cloned().chain(last).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Argument(usize),
}

/// Command line with placeholders for arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandTemplate {
    words: Vec<Vec<Part>>,
    /// Names of the arguments, in the order of first use.
    names: Vec<String>,
}

impl CommandTemplate {
    /// Parses a function's code.
    ///
    /// # Errors
    /// A message for the user, if the code is not a JSON array of words or a placeholder is malformed.
    pub fn parse(code: &[u8]) -> Result<Self, String> {
        let words: Vec<String> = serde_json::from_slice(code)
            .map_err(|error| format!("the code of an entry point must be a JSON array of strings ({error})"))?;
        if words.len() > MAX_WORDS {
            return Err(format!(
                "the entry point has {} words; {MAX_WORDS} are allowed",
                words.len()
            ));
        }
        let mut read = Self {
            words: Vec::with_capacity(words.len()),
            names: Vec::new(),
        };
        for word in &words {
            let parts = read.parts(word)?;
            read.words.push(parts);
        }
        Ok(read)
    }

    fn parts(&mut self, word: &str) -> Result<Vec<Part>, String> {
        let wrong = || {
            format!(
                "`{word:.100}` has an unmatched brace: write `{{name}}` for an argument, and two braces for a literal one"
            )
        };
        if word.contains('\0') {
            return Err("a word of the entry point contains a NUL byte".into());
        }
        let (mut parts, mut text) = (Vec::new(), String::new());
        let mut rest = word;
        while let Some(at) = rest.find(['{', '}']) {
            text += &rest[..at];
            let (brace, behind) = (&rest[at..=at], &rest[at + 1..]);
            if let Some(after) = behind.strip_prefix(brace) {
                text += brace;
                rest = after;
                continue;
            }
            let (name, after) = behind.split_once('}').filter(|_| brace == "{").ok_or_else(wrong)?;
            let mut bytes = name.bytes();
            let begins = bytes
                .next()
                .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_');
            if !begins || !bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
                return Err(format!(
                    "`{{{name:.100}}}` is not an argument: a name consists of letters, digits and `_`"
                ));
            }
            let known = self.names.iter().position(|known| known == name);
            let number = known.unwrap_or_else(|| {
                self.names.push(name.into());
                self.names.len() - 1
            });
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(Part::Argument(number));
            rest = after;
        }
        text += rest;
        if !text.is_empty() || parts.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(parts)
    }

    /// Whether the function has no words of its own. A function whose words are all empty lists in one call does have
    /// words.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the words of one call.
    ///
    /// # Errors
    /// A message for the user, if an argument is missing, unknown or has an unsuitable type.
    pub fn fill(&self, call: &JsonCall) -> Result<Vec<String>, String> {
        let values = self.values(call)?;
        let mut filled = Vec::with_capacity(self.words.len());
        for word in &self.words {
            if let [Part::Argument(number)] = word[..]
                && let Value::Array(several) = values[number]
            {
                for one in several {
                    filled.push(self.text(number, one)?);
                }
                continue;
            }
            let mut whole = String::new();
            for part in word {
                match part {
                    Part::Text(text) => whole += text,
                    Part::Argument(number) => whole += &self.text(*number, values[*number])?,
                }
            }
            filled.push(whole);
        }
        match filled.len() > MAX_WORDS {
            true => Err(format!("the call has {} words; {MAX_WORDS} are allowed", filled.len())),
            false => Ok(filled),
        }
    }

    fn values<'a>(&self, call: &'a JsonCall) -> Result<Vec<&'a Value>, String> {
        if call.arguments.len() > self.names.len() {
            return Err(format!(
                "the entry point takes {} arguments, and got {}",
                self.names.len(),
                call.arguments.len()
            ));
        }
        let mut given: HashMap<&str, &Value> = HashMap::new();
        for (name, value) in self.names.iter().zip(&call.arguments) {
            given.insert(name, value);
        }
        for (name, value) in &call.keywords {
            if !self.names.contains(name) {
                return Err(format!("the entry point has no argument `{name:.100}`"));
            }
            if given.insert(name, value).is_some() {
                return Err(format!("the entry point got `{name}` twice"));
            }
        }
        let value = |name: &String| {
            let found = given.get(name.as_str()).copied();
            found.ok_or_else(|| format!("the argument `{name}` is missing"))
        };
        self.names.iter().map(value).collect()
    }

    fn text(&self, number: usize, value: &Value) -> Result<String, String> {
        let name = &self.names[number];
        let mut text = String::new();
        match value {
            Value::String(given) if given.contains('\0') => return Err(format!("`{name}` contains a NUL byte")),
            Value::String(given) => text.clone_from(given),
            // Writing to a string does not fail.
            Value::Number(given) => drop(write!(text, "{given}")),
            Value::Bool(given) => drop(write!(text, "{given}")),
            Value::Array(_) => {
                return Err(format!(
                    "`{name}` is a list, but is only a part of a word; give a text or a number"
                ));
            }
            Value::Null | Value::Object(_) => {
                return Err(format!("`{name}` is not a text, number, boolean or list of these"));
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn words(words: &[&str]) -> Result<CommandTemplate, String> {
        CommandTemplate::parse(&serde_json::to_vec(words).unwrap())
    }

    fn call(arguments: Value, keywords: Value) -> JsonCall {
        serde_json::from_value(json!({ "arguments": arguments, "keywords": keywords })).unwrap()
    }

    #[test]
    fn arguments_replace_placeholders_without_a_shell() {
        let words = words(&["--size={width}x{height}", "{files}", "{{{width}}}", "", "{out}"]).unwrap();
        let filled = words.fill(&call(json!([64, 48.5, ["a b", "$(id)"]]), json!({ "out": true })));
        assert_eq!(filled.unwrap(), ["--size=64x48.5", "a b", "$(id)", "{64}", "", "true"]);
        let none = words.fill(&call(json!([64, 48]), json!({ "out": "o", "files": [] })));
        assert_eq!(none.unwrap(), ["--size=64x48", "{64}", "", "o"]);
    }

    #[test]
    fn unsuitable_arguments_are_refused_by_name() {
        let words = words(&["{a}", "x{b}"]).unwrap();
        for (arguments, keywords, wrong) in [
            (json!([1]), json!({}), "`b` is missing"),
            (json!([1, 2, 3]), json!({}), "takes 2 arguments, and got 3"),
            (json!([1, 2]), json!({ "a": 1 }), "got `a` twice"),
            (json!([1, 2]), json!({ "c": 1 }), "no argument `c`"),
            (json!([1, [2]]), json!({}), "`b` is a list"),
            (json!([[[1]], 2]), json!({}), "`a` is a list"),
            (json!([1, null]), json!({}), "`b` is not a text"),
            (json!([1, "\u{0}"]), json!({}), "`b` contains a NUL byte"),
        ] {
            let refused = words.fill(&call(arguments, keywords)).unwrap_err();
            assert!(refused.contains(wrong), "{refused}");
        }
    }

    #[test]
    fn code_without_word_list_is_refused() {
        for wrong in ["{a", "a}", "{}", "{a b}", "{1}", "{a}}", "\u{0}"] {
            assert!(words(&[wrong]).is_err(), "{wrong}");
        }
        for wrong in ["", "7", "{}", "[1]"] {
            assert!(CommandTemplate::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn image_command_is_used_without_own_words() {
        let start = Start {
            entry_point: vec!["tool".into(), "--quiet".into()],
            command: vec!["help".into()],
            directory: String::new(),
        };
        assert_eq!(start.line(None), ["tool", "--quiet", "help"]);
        assert_eq!(start.line(Some(vec!["run".into()])), ["tool", "--quiet", "run"]);
        assert_eq!(start.line(Some(Vec::new())), ["tool", "--quiet"]);
    }

    proptest! {
        #[test]
        fn text_with_doubled_braces_is_kept(text in "[^\0]*") {
            let escaped = text.replace('{', "{{").replace('}', "}}");
            let filled = words(&[&escaped]).unwrap().fill(&JsonCall::default());
            prop_assert_eq!(filled.unwrap(), [text]);
        }

        #[test]
        fn parsing_arbitrary_templates_never_panics(text in ".*", value in ".*") {
            if let Ok(words) = words(&[&text]) {
                let _ = words.fill(&call(json!([value]), json!({})));
            }
        }
    }
}
