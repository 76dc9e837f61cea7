//! What the node could lend to a call that is placed on it, as its heartbeats report it.

use std::time::Instant;

use dayfly_harvest::{Amount, Engine, Heartbeat, Spare, Step, Steps};
use dayfly_protocol::node_messages::{LendablePools, PoolStep};

/// What could be lent at some moment.
#[derive(Debug)]
pub(super) struct Pools {
    at: Instant,
    spare: Spare,
    unowned: Amount,
}

impl Pools {
    /// What the policy could lend now. `now_us` is the policy's time.
    pub fn of(engine: &Engine, now_us: u64) -> Self {
        let Heartbeat { spare, unowned, .. } = Heartbeat::of(engine, now_us, Amount::ZERO, Vec::new());
        Self {
            at: Instant::now(),
            spare,
            unowned,
        }
    }

    /// What is left of it now, if nothing has joined the pools since.
    pub fn now(&self) -> LendablePools {
        let since_us = u64::try_from(self.at.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.after(since_us)
    }

    fn after(&self, since_us: u64) -> LendablePools {
        let spare = self.spare.aged(since_us);
        LendablePools {
            cpu: steps(&spare.cpu),
            memory: steps(&spare.memory),
            unowned_milli_cores: self.unowned.milli_cores,
            unowned_bytes: self.unowned.memory_bytes,
        }
    }
}

fn steps(pool: &Steps) -> Vec<PoolStep> {
    let message = |&Step { remaining_us, units }: &Step| PoolStep { remaining_us, units };
    pool.as_slice().iter().map(message).collect()
}

#[cfg(test)]
mod tests {
    use dayfly_harvest::{
        Begin, CallId, Demand, Event, Features, FunctionId, Mode, Prediction, Predictor, Rules, Sample, TenantId,
    };

    use super::*;

    /// Expects each call to use half a core for a second.
    struct Half;

    impl Predictor for Half {
        fn predict(&mut self, _: FunctionId, _: &Features) -> Demand {
            let half = Amount::new(400, 0);
            Demand::Known(Prediction {
                median: half,
                high: half,
                short_us: 1_000_000,
                median_us: 2_000_000,
            })
        }

        fn learn(&mut self, _: FunctionId, _: Sample) {}
    }

    fn engine(mode: Mode) -> Engine {
        let mut engine = Engine::new(Rules::default(), Box::new(Half));
        let begin = Event::Begin(Begin {
            call: CallId(1),
            tenant: TenantId(1),
            function: FunctionId(1),
            features: Features::default(),
            owned: Amount::new(1_000, 0),
            lends: true,
            borrows_cpu: true,
            borrows_memory: false,
            group: None,
        });
        let shared = Event::Capacity {
            shared: Amount::new(4_000, 0),
        };
        for event in [shared, Event::Mode { mode }, begin] {
            engine.handle(0, &event);
        }
        engine
    }

    #[test]
    fn pools_are_what_the_policy_could_lend() {
        let pools = Pools::of(&engine(Mode::On), 200_000);
        let step = PoolStep {
            remaining_us: 800_000,
            units: 500,
        };
        let expected = LendablePools {
            cpu: vec![step],
            unowned_milli_cores: 3_000,
            ..LendablePools::default()
        };
        assert_eq!(pools.after(0), expected);
        let later = pools.after(300_000);
        assert_eq!(later.cpu[0].remaining_us, 500_000);
        assert!(pools.after(900_000).cpu.is_empty());
        let watched = Pools::of(&engine(Mode::Watch), 200_000).after(0);
        assert_eq!(watched, LendablePools::default());
    }
}
