//! Checks that docs/errors.md has a section with a remedy for every error code.

use std::collections::BTreeSet;

use dayfly_protocol::error::{Code, Retry};

/// Returns the page's sections by heading, such as `## 17 output_overflow`.
fn sections() -> Vec<(String, String)> {
    let page = std::fs::read_to_string(dayfly_testkit::root().join("docs/errors.md")).expect("docs/errors.md is there");
    let mut sections = Vec::new();
    for part in page.split("\n## ").skip(1) {
        let (heading, body) = part.split_once('\n').unwrap_or((part, ""));
        sections.push((heading.trim().to_owned(), body.to_owned()));
    }
    sections
}

fn heading(code: Code) -> String {
    format!("{} {}", code as u16, code.name())
}

/// Returns the sentence of the page for each kind of retry.
fn retry_sentence(retry: Retry) -> &'static str {
    match retry {
        Retry::Never => "Retry: no.",
        Retry::Later => "Retry: later.",
        Retry::Elsewhere => "Retry: at once, elsewhere.",
        Retry::IfIdempotent => "Retry: only if idempotent.",
    }
}

#[test]
fn every_code_has_a_complete_section() {
    let sections = sections();
    let mut wrong = Vec::new();
    for code in Code::ALL {
        let wanted = heading(*code);
        match sections.iter().find(|(found, _)| *found == wanted) {
            None => wrong.push(format!("no section '## {wanted}'")),
            Some((_, body)) => {
                for sentence in [
                    format!("HTTP {}.", code.http_status()),
                    retry_sentence(code.retry()).to_owned(),
                ] {
                    if !body.contains(&sentence) {
                        wrong.push(format!("'## {wanted}' does not say '{sentence}'"));
                    }
                }
                if !body.contains("**What to do.**") {
                    wrong.push(format!("'## {wanted}' has no remedy under '**What to do.**'"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "docs/errors.md:\n{}", wrong.join("\n"));
}

#[test]
fn every_section_belongs_to_a_code() {
    let known: BTreeSet<String> = Code::ALL.iter().map(|code| heading(*code)).collect();
    for (found, _) in sections() {
        assert!(
            known.contains(&found),
            "docs/errors.md describes '{found}', which is no code"
        );
    }
}
