use proptest::prelude::*;

use super::*;

/// Stages of a simulated query, the number of tasks of each. Every task reads all tasks of the stage before.
#[derive(Debug, Clone)]
struct Simulated {
    stages: Vec<usize>,
    ranks: u32,
    /// After how many completed runs which rank is lost.
    losses: Vec<(usize, u32)>,
}

fn queries() -> impl Strategy<Value = Simulated> {
    let stages = prop::collection::vec(1..5_usize, 1..4);
    let losses = prop::collection::vec((0..12_usize, 0..5_u32), 0..3);
    (stages, 3..6_u32, losses).prop_map(|(stages, ranks, losses)| Simulated { stages, ranks, losses })
}

/// What became of a simulated query.
#[derive(Debug, Default)]
struct Outcome {
    /// Completed runs of each task, with their ranks.
    runs: BTreeMap<TaskId, Vec<Place>>,
    /// Tasks of the last stage that the session has read, and from which run.
    read: BTreeMap<TaskId, Place>,
    lost: BTreeSet<u32>,
}

struct Simulation {
    query: Simulated,
    lineage: Lineage,
    outcome: Outcome,
    completed: usize,
}

impl Simulation {
    fn left(&self) -> BTreeSet<u32> {
        (0..self.query.ranks).filter(|rank| !self.outcome.lost.contains(rank)).collect()
    }

    /// Reads a task as its readers do: at its known place first. Returns the run that was read.
    fn read(&mut self, task: TaskId, known: Place) -> Result<Place, GivenUp> {
        let mut place = known;
        loop {
            if !self.outcome.lost.contains(&place.rank) && self.run(task, place)? {
                return Ok(place);
            }
            let left = self.left();
            place = match self.lineage.moved(task, place.attempt, &left, true)? {
                Decision::There(place) | Decision::Again(place) => place,
            };
        }
    }

    /// Runs a task unless its output is there. False if its rank is lost meanwhile.
    fn run(&mut self, task: TaskId, place: Place) -> Result<bool, GivenUp> {
        if self.outcome.runs.get(&task).is_some_and(|runs| runs.contains(&place)) {
            return Ok(true);
        }
        if task.0 > 0 {
            for input in 0..self.query.stages[task.0 - 1] {
                // The plan names the first place of the input.
                let known = first_place(self.query.ranks, (task.0 - 1, input));
                self.read((task.0 - 1, input), known)?;
                if self.outcome.lost.contains(&place.rank) {
                    return Ok(false);
                }
            }
        }
        self.outcome.runs.entry(task).or_default().push(place);
        self.completed += 1;
        for (after, rank) in self.query.losses.clone() {
            if after == self.completed && rank < self.query.ranks {
                self.outcome.lost.insert(rank);
            }
        }
        Ok(!self.outcome.lost.contains(&place.rank))
    }
}

fn first_place(ranks: u32, task: TaskId) -> Place {
    Place {
        rank: (task.0 as u32 + task.1 as u32) % ranks,
        attempt: 0,
    }
}

fn simulate(query: Simulated) -> Result<Outcome, GivenUp> {
    let mut lineage = Lineage::default();
    for (stage, tasks) in query.stages.iter().enumerate() {
        for task in 0..*tasks {
            lineage.begin((stage, task), first_place(query.ranks, (stage, task)).rank);
        }
    }
    let mut simulation = Simulation {
        lineage,
        outcome: Outcome::default(),
        completed: 0,
        query: query.clone(),
    };
    let last = query.stages.len() - 1;
    for task in 0..query.stages[last] {
        let known = first_place(query.ranks, (last, task));
        let read = simulation.read((last, task), known)?;
        assert!(simulation.outcome.read.insert((last, task), read).is_none());
    }
    Ok(simulation.outcome)
}

proptest! {
    #[test]
    fn every_result_partition_is_read_once(query in queries()) {
        let (last, tasks) = (query.stages.len() - 1, query.stages[query.stages.len() - 1]);
        if let Ok(outcome) = simulate(query) {
            let expected: Vec<TaskId> = (0..tasks).map(|task| (last, task)).collect();
            prop_assert_eq!(outcome.read.keys().copied().collect::<Vec<_>>(), expected);
            for (task, place) in &outcome.read {
                prop_assert!(outcome.runs[task].contains(place));
            }
        }
    }

    #[test]
    fn only_tasks_of_lost_ranks_run_again(query in queries()) {
        if let Ok(outcome) = simulate(query) {
            for runs in outcome.runs.values() {
                let (_, before) = runs.split_last().unwrap();
                prop_assert!(before.iter().all(|place| outcome.lost.contains(&place.rank)), "{runs:?}");
                let attempts: BTreeSet<u32> = runs.iter().map(|place| place.attempt).collect();
                prop_assert_eq!(attempts.len(), runs.len());
            }
        }
    }

    #[test]
    fn query_ends_while_ranks_are_left(query in queries()) {
        let losses: BTreeSet<u32> = query.losses.iter().map(|(_, rank)| *rank).collect();
        // Fewer losses than attempts, and a rank that is never lost.
        let outcome = simulate(query);
        prop_assert!(losses.len() < MAX_ATTEMPTS as usize);
        prop_assert!(outcome.is_ok(), "{outcome:?}");
    }
}

fn ranks(of: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
    of.into_iter().collect()
}

#[test]
fn second_reader_finds_the_run_of_the_first() {
    let mut lineage = Lineage::default();
    lineage.begin((1, 0), 0);
    lineage.begin((1, 1), 1);
    let again = Place { rank: 2, attempt: 1 };
    let left = ranks([1, 2]);
    assert_eq!(lineage.moved((1, 0), 0, &left, true), Ok(Decision::Again(again)));
    assert_eq!(lineage.moved((1, 0), 0, &left, true), Ok(Decision::There(again)));
}

#[test]
fn lost_tasks_are_given_up_with_their_cause() {
    let mut lineage = Lineage::default();
    lineage.begin((1, 0), 0);
    let left = ranks([0, 1, 2]);
    assert_eq!(lineage.moved((2, 0), 0, &left, true), Err(GivenUp::Unknown));
    assert_eq!(lineage.moved((1, 0), 0, &left, false), Err(GivenUp::MayDiffer));
    assert_eq!(lineage.moved((1, 0), 0, &ranks([0]), true), Err(GivenUp::NobodyLeft));
    for seen in 0..MAX_ATTEMPTS - 1 {
        let moved = lineage.moved((1, 0), seen, &left, true);
        assert!(matches!(moved, Ok(Decision::Again(place)) if place.attempt == seen + 1), "{moved:?}");
    }
    assert_eq!(lineage.moved((1, 0), MAX_ATTEMPTS - 1, &left, true), Err(GivenUp::Attempts));
    let failure = GivenUp::Attempts.to_failure((1, 0), 2, "its process has ended");
    assert_eq!(failure.code, Code::RankLost);
    assert_eq!(
        failure.message,
        "task 0 of stage 1 was lost in 3 attempts, the last one with rank 2: its process has ended"
    );
}
