//! The outcome of a task with several ranks, from the outcomes of its ranks.

use dayfly_client::{CallError, Outcome, Output};
use dayfly_protocol::encoding::{JSON_RESULT, RANK_RESULTS, join};

/// Marks a pickled exception as the one that ranks raise when another rank has left.
const GROUP_ERROR: &[u8] = b"GroupError";

/// Outcome of a task from those of its ranks in order of their ends: their results, or the failure that caused the
/// others.
pub fn outcome_of_ranks(mut ended: Vec<(usize, Outcome)>) -> Outcome {
    let is_own = |outcome: &Outcome| outcome.as_ref().is_err_and(|error| !is_caused_by_another_rank(error));
    let first = ended.iter().position(|(_, outcome)| is_own(outcome));
    if let Some(at) = first.or_else(|| ended.iter().position(|(_, outcome)| outcome.is_err())) {
        return ended.swap_remove(at).1;
    }
    ended.sort_by_key(|(rank, _)| *rank);
    let outputs: Vec<Output> = ended.into_iter().filter_map(|(_, outcome)| outcome.ok()).collect();
    let answers: Vec<&[u8]> = outputs.iter().map(Output::as_slice).collect();
    Ok(Output::Small(join_results(&answers)))
}

/// Whether a rank failed because another had left.
fn is_caused_by_another_rank(error: &CallError) -> bool {
    error
        .payload
        .windows(GROUP_ERROR.len())
        .any(|window| window == GROUP_ERROR)
}

/// Joins the results of all ranks: a JSON list, if all of them are JSON.
fn join_results(answers: &[&[u8]]) -> Vec<u8> {
    let text = |answer: &&[u8]| match answer.split_last() {
        Some((&JSON_RESULT, text)) => Some(text.to_vec()),
        _ => None,
    };
    match answers.iter().map(text).collect::<Option<Vec<_>>>() {
        Some(texts) => [b"[".as_slice(), &texts.join(&b','), b"]", &[JSON_RESULT]].concat(),
        None => join(answers, RANK_RESULTS),
    }
}

#[cfg(test)]
mod tests {
    use dayfly_client::{Code, Status};
    use dayfly_protocol::encoding::parts;
    use dayfly_protocol::error::Failure;

    use super::*;

    fn success(answer: &[u8]) -> Outcome {
        Ok(Output::Small(answer.to_vec()))
    }

    fn raised(payload: &[u8]) -> Outcome {
        Err(CallError {
            failure: Failure::new(Code::FunctionError, String::from_utf8_lossy(payload)),
            status: Some(Status::PythonException),
            payload: payload.to_vec(),
        })
    }

    fn bytes(outcome: Outcome) -> Vec<u8> {
        outcome.unwrap().into_bytes()
    }

    #[test]
    fn results_are_in_rank_order() {
        let all = bytes(outcome_of_ranks(vec![
            (2, success(b"c")),
            (0, success(b"a")),
            (1, success(b"b")),
        ]));
        assert_eq!(parts(&all).unwrap(), [b"a", b"b", b"c"]);
        assert_eq!(all.last(), Some(&RANK_RESULTS));
    }

    #[test]
    fn json_results_become_one_json_list() {
        let answer = |text: &str| success(&[text.as_bytes(), &[JSON_RESULT]].concat());
        let all = bytes(outcome_of_ranks(vec![(1, answer("{\"a\":2}")), (0, answer("1"))]));
        assert_eq!(all, [b"[1,{\"a\":2}]".as_slice(), &[JSON_RESULT]].concat());
    }

    #[test]
    fn own_failure_of_a_rank_is_the_cause() {
        let alone = || raised(b"dayfly._errors GroupError");
        let cause = outcome_of_ranks(vec![
            (0, alone()),
            (3, raised(b"mine")),
            (1, success(b"a")),
            (2, alone()),
        ]);
        assert_eq!(cause.unwrap_err().payload, b"mine");
        let cause = outcome_of_ranks(vec![(0, success(b"a")), (1, alone())]);
        assert_eq!(cause.unwrap_err().code(), Code::FunctionError);
    }
}
