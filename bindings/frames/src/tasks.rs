//! Tasks of queries, as Python takes them.

/// Rows, bytes received, bytes spilled and seconds of computing.
type Work = (u64, u64, u64, f64);
/// Stage and rank, and the work done, once it is known.
pub type Task = (usize, u32, Option<Work>);

/// What a query took: seconds, tasks, seconds of computing, bytes exchanged, bytes spilled, its recovery, and the runs
/// that were lost.
pub type Took = (f64, Vec<Task>, f64, u64, u64, &'static str, u32);

/// A task for Python.
pub fn task_of(task: &dayfly_frame::Task) -> Task {
    let work = task.work.map(|work| {
        let computing = work.computing.as_secs_f64();
        (work.rows, work.received_bytes, work.spilled_bytes, computing)
    });
    (task.stage, task.rank, work)
}
