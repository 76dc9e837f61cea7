//! Ranks with rows of their own, which all make the same plans.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::prelude::{col, lit};
use dayfly_frame::{KeptFrame, Member, Memory, RankOptions, SessionOptions};
use dayfly_protocol::error::{Code, Failure};

use crate::thread_group::{Net, group, options};

const RANKS: u32 = 3;
/// Enough to be divided among the threads of a rank.
const ROWS: i64 = 20_000;

fn numbers(from: i64, name: &str) -> RecordBatch {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(from..from + ROWS));
    RecordBatch::try_from_iter([(name, numbers)]).unwrap()
}

/// A frame of the rows that the ranks keep under an id.
fn local(member: &Member, id: u8, batch: RecordBatch) -> Result<KeptFrame, Failure> {
    let kept = member.keep([id; 16], &batch.schema(), vec![batch])?;
    let of_ranks = member.allgather(&kept.to_bytes()?)?;
    let of_ranks = of_ranks.iter().map(|bytes| KeptFrame::from_bytes(bytes));
    KeptFrame::joined(of_ranks.collect::<Result<Vec<_>, _>>()?)
}

/// Has rank 0 compute a plan, and returns where all ranks keep its rows. The plan there keeps them.
fn persisted(member: &Member, plan: LogicalPlan) -> (KeptFrame, Option<LogicalPlan>) {
    let session = member.session();
    let kept = member
        .is_leader()
        .then(|| session.runtime().block_on(session.persist(plan, 1)).unwrap());
    let description = kept
        .as_ref()
        .map(|plan| KeptFrame::of(plan).unwrap().to_bytes().unwrap())
        .unwrap_or_default();
    let all = member.allgather(&description).unwrap();
    (KeptFrame::from_bytes(&all[0]).unwrap(), kept)
}

fn rank_options() -> RankOptions {
    RankOptions {
        threads: 2,
        ..RankOptions::default()
    }
}

#[test]
fn members_have_the_rows_of_results() {
    let found = group(RANKS, Net::Shm, options(), |communicator| {
        let rank = i64::from(communicator.rank());
        let member = Member::of(communicator, &rank_options(), &SessionOptions::default()).unwrap();
        let left = local(&member, 1, numbers(rank * ROWS, "left")).unwrap();
        let right = local(&member, 2, numbers(rank * 2 * ROWS, "right")).unwrap();
        let (left, right) = (member.plan(&left).unwrap(), member.plan(&right).unwrap());
        let joined = LogicalPlanBuilder::from(left)
            .filter((col("left") % lit(2)).eq(lit(0)))
            .unwrap()
            .join_on(
                right,
                datafusion::common::JoinType::Inner,
                [col("left").eq(col("right"))],
            )
            .unwrap()
            .build()
            .unwrap();
        let text = member.fingerprint(&joined).unwrap();
        let texts = member.allgather(text.as_bytes()).unwrap();
        assert!(texts.iter().all(|other| other == text.as_bytes()));
        let (frame, kept) = persisted(&member, joined);
        let own = member.own_rows(&frame).unwrap();
        let all = member.session().runtime().block_on(member.all_rows(frame)).unwrap();
        // The ranks forget the rows when rank 0 drops its plan, so all of them have to have them.
        member.allgather(b"").unwrap();
        drop(kept);
        let rows = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
        (rows(&own), rows(&all))
    });
    // Right has the ranges from 0, 2 and 4 times ROWS; left all numbers below 3 times ROWS.
    let expected = 2 * (ROWS as usize) / 2;
    assert_eq!(found.iter().map(|(own, _)| own).sum::<usize>(), expected);
    assert!(found.iter().all(|(_, all)| *all == expected), "{found:?}");
}

#[test]
fn local_rows_stay_on_their_rank() {
    group(RANKS, Net::Shm, options(), |communicator| {
        let rank = i64::from(communicator.rank());
        let member = Member::of(communicator, &rank_options(), &SessionOptions::default()).unwrap();
        let batch = numbers(rank * ROWS, "number");
        let frame = local(&member, 1, batch.clone()).unwrap();
        let own =
            datafusion::arrow::compute::concat_batches(frame.schema(), &member.own_rows(&frame).unwrap()).unwrap();
        assert_eq!(
            pretty_format_batches(&[own]).unwrap().to_string(),
            pretty_format_batches(&[batch]).unwrap().to_string()
        );
        member.allgather(b"").unwrap();
    });
}

#[test]
fn members_with_different_columns_are_refused() {
    group(2, Net::Shm, options(), |communicator| {
        let name = if communicator.rank() == 0 { "key" } else { "other" };
        let member = Member::of(communicator, &rank_options(), &SessionOptions::default()).unwrap();
        let failure = local(&member, 1, numbers(0, name)).unwrap_err();
        assert_eq!(failure.code, Code::InvalidRequest);
        let difference = r#"rank 0 has "key" where rank 1 has "other""#;
        assert!(failure.message.contains(difference), "{failure}");
        member.allgather(b"").unwrap();
    });
}

#[test]
fn local_rows_beyond_memory_are_refused() {
    group(1, Net::Shm, options(), |communicator| {
        let rank = RankOptions {
            memory: Memory {
                bytes: Some(64 << 10),
                spill: None,
            },
            ..RankOptions::default()
        };
        let member = Member::of(communicator, &rank, &SessionOptions::default()).unwrap();
        let batch = numbers(0, "number");
        let failure = member.keep([1; 16], &batch.schema(), vec![batch]).unwrap_err();
        assert_eq!(failure.code, Code::OutOfMemory);
    });
}
