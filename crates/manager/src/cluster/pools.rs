//! What a node could lend, as the placement of leases weighs it: the pools of its last heartbeat, less what the leases that
//! were placed on it since may borrow.

use std::time::Instant;

use dayfly_harvest::{Amount, Claim, ExpectedPools, Spare, Step, Steps, StepsError, Want};
use dayfly_protocol::api::{Capacity, LeaseRequest, Mode};
use dayfly_protocol::cores::MilliCores;
use dayfly_protocol::ids::LeaseId;
use dayfly_protocol::node_messages::{LendablePools, PoolStep};
use dayfly_store::LeaseRecord;

/// Time from a grant until the lease's first calls can be in a heartbeat, in microseconds.
const TRANSIT_US: u64 = 1_000_000;
/// Leases on a node that are counted between two heartbeats. Further ones are not counted: loans are smaller.
const MAX_CLAIMS: usize = 256;

/// What a node reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LendingReport {
    /// When it arrived.
    pub at: Instant,
    /// The pools of what running calls own.
    pub spare: Spare,
    /// What nobody owns and nobody has borrowed.
    pub unowned: Amount,
}

impl LendingReport {
    /// Checks what a node reports. Amounts beyond its capacity are cut off.
    pub fn new(at: Instant, pools: LendablePools, capacity: &Capacity) -> Result<Self, StepsError> {
        let most = Amount::new(capacity.workers.max(capacity.cores.into()).get(), capacity.memory_bytes);
        let steps = |steps: Vec<PoolStep>| {
            let step = |PoolStep { remaining_us, units }| Step { remaining_us, units };
            Steps::try_from(steps.into_iter().map(step).collect::<Vec<_>>())
        };
        let spare = Spare {
            cpu: steps(pools.cpu)?,
            memory: steps(pools.memory)?,
        };
        Ok(Self {
            at,
            spare: spare.at_most(most),
            unowned: Amount::new(pools.unowned_milli_cores, pools.unowned_bytes).min(most),
        })
    }
}

/// What a lease owns, and what its calls may want above it.
#[derive(Debug, Clone, Copy)]
pub struct LeaseDemand {
    now: Instant,
    owned: Amount,
    want: Want,
}

impl LeaseDemand {
    /// The demand of a lease that is placed now; `None` if none of its calls ever borrows. What its functions want is not
    /// known, so each worker counts with one more core for a second.
    pub fn of(request: &LeaseRequest, now: Instant) -> Option<Self> {
        let (workers, cores) = (request.workers, request.cores_per_worker);
        let borrows = request.mode != Mode::Hot && request.loans.borrow.has_cpu();
        borrows.then(|| Self::new(now, workers, cores, request.memory_bytes))
    }

    /// The demand of a warm worker with one core.
    pub fn of_worker(now: Instant) -> Self {
        Self::new(now, 1, MilliCores::ONE, 0)
    }

    fn new(now: Instant, workers: u16, cores_per_worker: MilliCores, memory_bytes: u64) -> Self {
        let mut want = Want::NOMINAL;
        want.extra.milli_cores *= u64::from(workers);
        Self {
            now,
            owned: Amount::new((cores_per_worker * u32::from(workers)).get(), memory_bytes),
            want,
        }
    }
}

/// The pools of one node. Empty, at no cost, while it lends nothing.
#[derive(Debug, Default)]
pub struct NodePools(Option<Box<Reported>>);

#[derive(Debug)]
struct Reported {
    /// Zero of the times of `expected`.
    origin: Instant,
    last: LendingReport,
    expected: ExpectedPools<LeaseId>,
}

impl NodePools {
    /// Takes a report; `None` if the node lends nothing.
    pub fn report(&mut self, report: Option<LendingReport>) {
        let Some(report) = report else {
            self.0 = None;
            return;
        };
        let reported = self.0.get_or_insert_with(|| {
            Box::new(Reported {
                origin: report.at,
                last: report.clone(),
                expected: ExpectedPools::default(),
            })
        });
        let at_us = reported.us(report.at);
        let LendingReport { spare, unowned, .. } = &report;
        reported.expected.report(at_us, spare, *unowned, TRANSIT_US);
        reported.last = report;
    }

    /// The last report, if the node lends.
    pub fn last(&self) -> Option<&LendingReport> {
        self.0.as_ref().map(|reported| &reported.last)
    }

    /// Counts a lease that is placed on the node now, if its calls may borrow.
    pub fn add(&mut self, record: &LeaseRecord) {
        if let Some(reported) = &mut self.0 {
            reported.add(record, Instant::now());
        }
    }

    /// Counts a lease no more.
    pub fn remove(&mut self, lease: &LeaseId) {
        if let Some(reported) = &mut self.0 {
            reported.expected.remove(lease);
        }
    }

    /// How much of what the lease's calls may want the node can lend, in hundredths.
    pub fn coverage_percent(&self, demand: &LeaseDemand) -> u8 {
        self.0.as_ref().map_or(0, |reported| reported.coverage_percent(demand))
    }
}

impl Reported {
    fn add(&mut self, record: &LeaseRecord, now: Instant) {
        if record.mode == Mode::Hot || self.expected.claims() >= MAX_CLAIMS {
            return;
        }
        let demand = LeaseDemand::new(now, record.workers, record.cores_per_worker, record.memory_bytes);
        // Its calls go on wanting it, until a heartbeat shows them.
        let want = Want {
            duration_us: u64::MAX,
            ..demand.want
        };
        let claim = Claim::new(self.us(now), demand.owned, &want);
        self.expected.add(record.lease, claim);
    }

    fn coverage_percent(&self, demand: &LeaseDemand) -> u8 {
        self.expected
            .gain_percent(self.us(demand.now), &demand.want, demand.owned)
    }

    fn us(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.origin);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dayfly_protocol::api::Borrow;
    use dayfly_protocol::ids::PublicKey;
    use proptest::prelude::*;

    use super::*;

    const CAPACITY: Capacity = Capacity {
        cores: 4,
        memory_bytes: 1 << 30,
        workers: MilliCores::new(8_000),
        gpus: 0,
    };

    fn lending(milli_cores: u64) -> LendablePools {
        LendablePools {
            cpu: vec![PoolStep {
                remaining_us: 60_000_000,
                units: milli_cores,
            }],
            ..LendablePools::default()
        }
    }

    fn reporting(report: LendingReport) -> NodePools {
        let mut pools = NodePools::default();
        pools.report(Some(report));
        pools
    }

    fn pools(at: Instant, milli_cores: u64) -> NodePools {
        reporting(LendingReport::new(at, lending(milli_cores), &CAPACITY).unwrap())
    }

    fn add(pools: &mut NodePools, record: &LeaseRecord, now: Instant) {
        pools.0.as_mut().unwrap().add(record, now);
    }

    fn warm(workers: u16) -> LeaseRequest {
        LeaseRequest::native(workers, Mode::Warm, 1_000, PublicKey([0; 32]))
    }

    fn record(lease: u8, mode: Mode) -> LeaseRecord {
        LeaseRecord {
            lease: LeaseId([lease; 16]),
            mode,
            workers: 1,
            cores_per_worker: MilliCores::ONE,
            ..dayfly_store::conformance::store::record()
        }
    }

    #[test]
    fn coverage_is_what_each_worker_may_borrow() {
        let now = Instant::now();
        let coverage = |milli_cores, workers| {
            let demand = LeaseDemand::of(&warm(workers), now).unwrap();
            pools(now, milli_cores).coverage_percent(&demand)
        };
        assert_eq!((coverage(500, 1), coverage(500, 2), coverage(4_000, 2)), (50, 25, 100));
        let hot = LeaseRequest::native(1, Mode::Hot, 1_000, PublicKey([0; 32]));
        assert!(LeaseDemand::of(&hot, now).is_none());
        let mut keeping = warm(1);
        keeping.loans.borrow = Borrow::None;
        assert!(LeaseDemand::of(&keeping, now).is_none());
    }

    #[test]
    fn leases_placed_since_the_heartbeat_count_as_borrowers() {
        let begun = Instant::now();
        let mut pools = pools(begun, 1_500);
        let after = |ms| begun + Duration::from_millis(ms);
        let demand = LeaseDemand::of(&warm(1), after(20)).unwrap();
        add(&mut pools, &record(1, Mode::Hot), after(10));
        assert_eq!(pools.coverage_percent(&demand), 100);
        add(&mut pools, &record(2, Mode::Warm), after(10));
        assert_eq!(pools.coverage_percent(&demand), 50);
        // A heartbeat that comes before the lease's first call can be in it.
        pools.report(Some(LendingReport::new(after(500), lending(1_500), &CAPACITY).unwrap()));
        assert_eq!(pools.coverage_percent(&demand), 50);
        pools.remove(&LeaseId([2; 16]));
        add(&mut pools, &record(3, Mode::Warm), after(600));
        pools.report(Some(
            LendingReport::new(after(2_000), lending(1_500), &CAPACITY).unwrap(),
        ));
        assert_eq!(pools.coverage_percent(&demand), 100);
    }

    #[test]
    fn hostile_reports_are_refused_or_cut_off() {
        let now = Instant::now();
        let step = |remaining_us, units| PoolStep { remaining_us, units };
        let read = |cpu: Vec<PoolStep>| {
            let pools = LendablePools {
                cpu,
                unowned_milli_cores: u64::MAX,
                unowned_bytes: u64::MAX,
                ..LendablePools::default()
            };
            LendingReport::new(now, pools, &CAPACITY)
        };
        assert!(matches!(
            read(vec![step(1, 1); 100_000]),
            Err(StepsError::TooMany(100_000))
        ));
        assert!(matches!(
            read(vec![step(2, 2), step(1, 1)]),
            Err(StepsError::NotLater(1))
        ));
        assert!(matches!(
            read(vec![step(1, 1), step(2, 2)]),
            Err(StepsError::NotFewer(1))
        ));
        let most = read(vec![step(u64::MAX, u64::MAX)]).unwrap();
        assert_eq!(
            (most.spare.cpu.at(0), most.unowned),
            (8_000, Amount::new(8_000, 1 << 30))
        );
        let demand = LeaseDemand::of(&warm(1_024), now).unwrap();
        assert!(reporting(most).coverage_percent(&demand) <= 2);
        // Not a number is no JSON number, and a fraction or a negative one is no amount.
        for number in ["NaN", "-1", "0.5", "1e400", "18446744073709551616"] {
            let text = format!(r#"{{"cpu": [{{"remaining_us": 1, "units": {number}}}]}}"#);
            assert!(serde_json::from_str::<LendablePools>(&text).is_err(), "{number}");
        }
    }

    proptest! {
        #[test]
        fn any_report_gives_a_coverage_or_an_error(
            steps in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..20),
            unowned: u64, workers in 1..1_025u16, later in 0..u64::MAX / 2_000_000,
        ) {
            let now = Instant::now();
            let pools = LendablePools {
                cpu: steps.into_iter().map(|(remaining_us, units)| PoolStep { remaining_us, units }).collect(),
                unowned_milli_cores: unowned,
                ..LendablePools::default()
            };
            if let Ok(report) = LendingReport::new(now, pools, &CAPACITY) {
                let mut pools = reporting(report);
                let at = now.checked_add(Duration::from_micros(later)).unwrap_or(now);
                let demand = LeaseDemand::of(&warm(workers), at).unwrap();
                let before = pools.coverage_percent(&demand);
                add(&mut pools, &record(1, Mode::Warm), now);
                prop_assert!(pools.coverage_percent(&demand) <= before && before <= 100);
            }
        }
    }
}
