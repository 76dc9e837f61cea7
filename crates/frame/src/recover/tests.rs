use proptest::prelude::*;

use super::*;

/// Stages of a simulated query, the number of tasks of each. Every task reads all tasks of the stage before.
#[derive(Debug, Clone)]
struct Simulated {
    stages: Vec<usize>,
    ranks: u32,
    /// After how many completed runs which rank is lost.
    losses: Vec<(usize, u32)>,
    /// The stage whose runs differ from each other, if there is one.
    differing: Option<usize>,
}

fn queries() -> impl Strategy<Value = Simulated> {
    let stages = prop::collection::vec(1..5_usize, 1..5);
    let losses = prop::collection::vec((0..16_usize, 0..5_u32), 0..3);
    let differing = prop::option::of(0..3_usize);
    (stages, 3..6_u32, losses, differing).prop_map(|(stages, ranks, losses, differing)| Simulated {
        stages,
        ranks,
        losses,
        differing,
    })
}

impl Simulated {
    fn first_place(&self, task: TaskId) -> Place {
        Place {
            rank: (task.0 as u32 + task.1 as u32) % self.ranks,
            attempt: 0,
        }
    }

    fn last(&self) -> usize {
        self.stages.len() - 1
    }

    /// As [`along`] finds them.
    fn along(&self, stage: usize) -> BTreeSet<usize> {
        let differs = self.differing.is_some_and(|differing| differing <= stage);
        let readers = self.stages.get(stage + 1).copied().unwrap_or(1);
        match differs && readers > 1 {
            true => (stage + 1..self.stages.len()).collect(),
            false => BTreeSet::new(),
        }
    }
}

/// The runs of differing tasks that some rows come from.
type Origins = BTreeSet<(TaskId, u32)>;

struct Simulation {
    query: Simulated,
    lineage: Lineage,
    lost: BTreeSet<u32>,
    /// Completed runs in their order, with what they were made of.
    runs: Vec<(TaskId, Place, Origins)>,
    superseded: BTreeSet<(TaskId, u32)>,
    /// Tasks that ran again although their rank was there.
    taken_along: BTreeSet<TaskId>,
    /// What the session has read of each task of the last stage.
    read: BTreeMap<TaskId, Origins>,
}

impl Simulation {
    fn new(query: Simulated) -> Self {
        let mut lineage = Lineage::default();
        for (stage, tasks) in query.stages.iter().enumerate() {
            for task in 0..*tasks {
                lineage.begin((stage, task), query.first_place((stage, task)).rank);
            }
        }
        Self {
            query,
            lineage,
            lost: BTreeSet::new(),
            runs: Vec::new(),
            superseded: BTreeSet::new(),
            taken_along: BTreeSet::new(),
            read: BTreeMap::new(),
        }
    }

    /// The session reads all tasks of the last stage.
    fn run(&mut self) -> Result<(), GivenUp> {
        let last = self.query.last();
        for number in 0..self.query.stages[last] {
            let task = (last, number);
            let (place, origins) = self.read(task)?;
            assert!(self.lineage.keep(task, place));
            assert!(self.read.insert(task, origins).is_none());
        }
        Ok(())
    }

    /// Reads a task as its readers do: at the place that the plan names first.
    fn read(&mut self, task: TaskId) -> Result<(Place, Origins), GivenUp> {
        let mut place = self.query.first_place(task);
        loop {
            if self.is_there(task, place) {
                let origins = self.origins(task, place)?;
                if self.is_there(task, place) {
                    return Ok((place, origins));
                }
            }
            place = self.moved(task, place)?;
        }
    }

    fn is_there(&self, task: TaskId, place: Place) -> bool {
        !self.lost.contains(&place.rank) && !self.superseded.contains(&(task, place.attempt))
    }

    fn moved(&mut self, task: TaskId, seen: Place) -> Result<Place, GivenUp> {
        let left = (0..self.query.ranks).filter(|rank| !self.lost.contains(rank)).collect();
        let before: BTreeMap<_, _> = self
            .lineage
            .tasks
            .iter()
            .map(|(task, known)| (*task, known.place))
            .collect();
        let along = self.query.along(task.0);
        match self.lineage.moved(task, seen.attempt, &left, &along)? {
            Decision::There(place) => Ok(place),
            Decision::Again { place, along } => {
                for (reader, _) in &along {
                    if !self.lost.contains(&before[reader].rank) {
                        self.taken_along.insert(*reader);
                    }
                }
                for again in along.iter().map(|(reader, _)| *reader).chain([task]) {
                    self.superseded.insert((again, before[&again].attempt));
                }
                Ok(place)
            }
        }
    }

    /// What a run is made of. Runs it, unless it is complete.
    fn origins(&mut self, task: TaskId, place: Place) -> Result<Origins, GivenUp> {
        let complete = self.runs.iter().find(|run| (run.0, run.1) == (task, place));
        if let Some((_, _, origins)) = complete {
            return Ok(origins.clone());
        }
        let mut origins = Origins::new();
        if self.query.differing == Some(task.0) {
            origins.insert((task, place.attempt));
        }
        if task.0 > 0 {
            for input in 0..self.query.stages[task.0 - 1] {
                origins.extend(self.read((task.0 - 1, input))?.1);
            }
        }
        if self.is_there(task, place) {
            self.runs.push((task, place, origins.clone()));
            for (after, rank) in &self.query.losses {
                if *after == self.runs.len() && *rank < self.query.ranks {
                    self.lost.insert(*rank);
                }
            }
        }
        Ok(origins)
    }
}

proptest! {
    #[test]
    fn every_result_partition_is_read_once(query in queries()) {
        let mut simulation = Simulation::new(query.clone());
        if simulation.run().is_ok() {
            let expected: Vec<TaskId> = (0..query.stages[query.last()]).map(|task| (query.last(), task)).collect();
            prop_assert_eq!(simulation.read.keys().copied().collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn results_never_mix_runs_that_differ(query in queries()) {
        let mut simulation = Simulation::new(query);
        if simulation.run().is_ok() {
            let origins: Origins = simulation.read.values().flatten().copied().collect();
            let tasks: BTreeSet<TaskId> = origins.iter().map(|(task, _)| *task).collect();
            prop_assert_eq!(tasks.len(), origins.len(), "{:?}", origins);
        }
    }

    #[test]
    fn only_lost_tasks_and_their_readers_run_again(query in queries()) {
        let mut simulation = Simulation::new(query.clone());
        if simulation.run().is_ok() {
            let mut runs: BTreeMap<TaskId, Vec<Place>> = BTreeMap::new();
            for (task, place, _) in &simulation.runs {
                runs.entry(*task).or_default().push(*place);
            }
            for (task, places) in runs {
                let (_, before) = places.split_last().unwrap();
                let are_lost = before.iter().all(|place| simulation.lost.contains(&place.rank));
                prop_assert!(are_lost || simulation.taken_along.contains(&task), "{task:?} {places:?}");
                let attempts: BTreeSet<u32> = places.iter().map(|place| place.attempt).collect();
                prop_assert_eq!(attempts.len(), places.len());
            }
            let differing = query.differing.unwrap_or(usize::MAX);
            prop_assert!(simulation.taken_along.iter().all(|(stage, _)| *stage > differing));
        }
    }

    #[test]
    fn query_ends_while_ranks_are_left(query in queries()) {
        // Fewer losses than attempts, and a rank that is never lost.
        let outcome = Simulation::new(query).run();
        prop_assert!(matches!(outcome, Ok(()) | Err(GivenUp::MayDiffer)), "{outcome:?}");
    }
}

fn ranks(of: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
    of.into_iter().collect()
}

fn again(rank: u32, attempt: u32) -> Result<Decision, GivenUp> {
    let place = Place { rank, attempt };
    Ok(Decision::Again {
        place,
        along: Vec::new(),
    })
}

#[test]
fn large_inputs_are_recovered_by_tasks() {
    let chosen = |bytes| Recovery::Auto.for_input(bytes);
    let (small, large) = (chosen((4 << 30) - 1), chosen(4 << 30));
    assert_eq!((small.recovery, large.recovery), (Recovery::Query, Recovery::Tasks));
    assert!(
        large
            .to_string()
            .contains("tasks of lost ranks run again: its scans read about 4.0 GiB")
    );
    assert!(
        chosen(1 << 20)
            .to_string()
            .ends_with("about 1.0 MiB, which is less than 4.0 GiB")
    );
    assert_eq!(Recovery::Tasks.for_input(0).recovery, Recovery::Tasks);
    assert_eq!(Recovery::Query.for_input(u64::MAX).recovery, Recovery::Query);
}

#[test]
fn second_reader_finds_the_run_of_the_first() {
    let mut lineage = Lineage::default();
    lineage.begin((1, 0), 0);
    lineage.begin((1, 1), 1);
    let (left, alone) = (ranks([1, 2]), BTreeSet::new());
    assert_eq!(lineage.moved((1, 0), 0, &left, &alone), again(2, 1));
    let place = Place { rank: 2, attempt: 1 };
    assert_eq!(lineage.moved((1, 0), 0, &left, &alone), Ok(Decision::There(place)));
}

#[test]
fn lost_tasks_are_given_up_with_their_cause() {
    let mut lineage = Lineage::default();
    lineage.begin((1, 0), 0);
    lineage.begin((2, 0), 1);
    assert!(lineage.keep((2, 0), Place { rank: 1, attempt: 0 }));
    let (left, alone) = (ranks([0, 1, 2]), BTreeSet::new());
    assert_eq!(lineage.moved((3, 0), 0, &left, &alone), Err(GivenUp::Unknown));
    assert_eq!(
        lineage.moved((1, 0), 0, &left, &BTreeSet::from([2])),
        Err(GivenUp::MayDiffer)
    );
    assert_eq!(lineage.moved((1, 0), 0, &ranks([0]), &alone), Err(GivenUp::NobodyLeft));
    for seen in 0..MAX_ATTEMPTS - 1 {
        let moved = lineage.moved((1, 0), seen, &left, &alone);
        assert!(matches!(moved, Ok(Decision::Again { place, .. }) if place.attempt == seen + 1));
    }
    let last = lineage.moved((1, 0), MAX_ATTEMPTS - 1, &left, &alone);
    assert_eq!(last, Err(GivenUp::Attempts));
    let failure = GivenUp::Attempts.to_failure((1, 0), 2, "its process has ended");
    assert_eq!(failure.code, Code::RankLost);
    assert_eq!(
        failure.message,
        "task 0 of stage 1 was lost in 3 attempts, the last one with rank 2: its process has ended"
    );
}
