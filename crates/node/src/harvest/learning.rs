//! The profiles of a node's functions, how much they have learnt, and reports of them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dayfly_harvest::profile::{ChosenModel, Lending, Report, Trained, TrainingJob};
use dayfly_harvest::{Amount, Demand, Features, FunctionId, Options, Predictor, Profiles, Rules, Sample, Trains};
use dayfly_protocol::api::{CallResources, LearntProfile, ProfileModel, ProfileScores};
use dayfly_protocol::call_samples::{CallSample, MAX_SAMPLES};
use dayfly_protocol::ids::{LeaseId, TenantId};
use dayfly_protocol::node_messages::NodeMessage;

use super::exchange::{Exchange, from_message};
use super::names::Names;

/// What a node learnt. Clones share it: the thread that measures, and requests for reports.
#[derive(Debug, Clone, Default)]
pub(super) struct Learning(Arc<Learnt>);

/// In the thread that measures, samples are only kept. Models are trained in a thread of their own.
pub(super) const TRAINS: Trains = Trains::OnRequest;

/// Samples from which on a function needs none of other nodes: its next training is by its own.
const MIN_OWN_SAMPLES: usize = 21;

#[derive(Debug)]
struct Learnt {
    profiles: Mutex<Profiles>,
    /// The models of the training that ends next.
    trained: Mutex<Option<Trained>>,
    names: Mutex<Names>,
    exchange: Mutex<Exchange>,
    samples: AtomicU64,
    functions: AtomicU32,
}

impl Default for Learnt {
    fn default() -> Self {
        let options = Options {
            trains: TRAINS,
            ..Options::default()
        };
        Self {
            profiles: Mutex::new(Profiles::new(options)),
            trained: Mutex::default(),
            names: Mutex::default(),
            exchange: Mutex::default(),
            samples: AtomicU64::default(),
            functions: AtomicU32::default(),
        }
    }
}

impl Learning {
    fn profiles(&self) -> MutexGuard<'_, Profiles> {
        self.0.profiles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.0.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls that were learnt from.
    pub fn samples(&self) -> u64 {
        self.0.samples.load(Ordering::Relaxed)
    }

    /// Functions with a profile.
    pub fn functions(&self) -> u32 {
        self.0.functions.load(Ordering::Relaxed)
    }

    /// The function whose models should be trained next, if any.
    pub fn due(&self) -> Option<FunctionId> {
        self.profiles().due()
    }

    /// The training of a function that has begun.
    pub fn training(&self, function: FunctionId) -> Option<TrainingJob> {
        self.profiles().training(function)
    }

    /// Keeps models until the policy handles the end of their training.
    pub fn keep_models(&self, trained: Trained) {
        *self.trained() = Some(trained);
    }

    fn trained(&self) -> MutexGuard<'_, Option<Trained>> {
        self.0.trained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exchange(&self) -> MutexGuard<'_, Exchange> {
        self.0.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The numbers of a tenant and of its function, a call of which owns this much.
    pub fn number(&self, tenant: TenantId, function: &str, owned: Amount) -> (dayfly_harvest::TenantId, FunctionId) {
        self.names().of(tenant, function, owned)
    }

    /// Notes that a lease, whose calls may lend or not, runs a function. The manager is asked for samples of a function
    /// that is new here.
    pub fn meet(&self, tenant: TenantId, function: FunctionId, lease: LeaseId, may_lend: bool) {
        let mut names = self.names();
        let named = names
            .note_lease(tenant, function, lease, may_lend)
            .then(|| names.last_lease(function));
        drop(names);
        if let Some((lease, name)) = named.flatten()
            && self.profiles().samples(function) == 0
        {
            self.exchange().want(tenant, &name, lease, function);
        }
    }

    /// The next samples to report to the manager, and functions to ask it for.
    pub fn messages(&self) -> Vec<NodeMessage> {
        self.exchange().messages(|function| self.names().last_lease(function))
    }

    /// The samples of a manager's message that a profile has room for, if they were asked for, and the function did not
    /// learn enough to be predicted meanwhile.
    pub fn wanted_samples(
        &self,
        tenant: TenantId,
        function: &str,
        samples: &[CallSample],
    ) -> Option<(FunctionId, Vec<Sample>)> {
        let id = self.exchange().expected(tenant, function)?;
        let own = self.profiles().samples(id);
        let room = MAX_SAMPLES.saturating_sub(own);
        let last = &samples[samples.len().saturating_sub(room)..];
        (own < MIN_OWN_SAMPLES).then(|| (id, last.iter().copied().map(from_message).collect()))
    }

    /// Reports the functions of a tenant that a text names. Each takes less than a millisecond, in which the thread that
    /// measures may wait.
    pub fn reports(&self, tenant: TenantId, wanted: &str, rules: Rules, is_on: bool) -> Vec<LearntProfile> {
        let named = self.names().named(tenant, wanted);
        let reports = named.into_iter().filter_map(|(id, function)| {
            let owned = function.owned();
            let lending = Lending {
                owned,
                rules,
                is_on,
                is_permitted: function.may_lend(),
            };
            let report = self.profiles().report(id, &lending)?;
            Some(learnt_profile(function.name(), owned, report))
        });
        reports.collect()
    }
}

fn learnt_profile(function: &str, owned: Amount, report: Report) -> LearntProfile {
    let count = |samples: usize| u32::try_from(samples).unwrap_or(u32::MAX);
    let scores = report.scores.map(|scores| ProfileScores {
        forest_loss: scores.forest_loss,
        histogram_loss: scores.histogram_loss,
        cpu_accuracy: scores.cpu_accuracy,
        memory_accuracy: scores.memory_accuracy,
        duration_r2: scores.duration_r2,
        is_size_related: scores.is_size_related,
    });
    let profile = LearntProfile {
        function: function.into(),
        samples: count(report.samples),
        samples_needed: count(report.samples_needed),
        model: match report.model {
            ChosenModel::None => ProfileModel::None,
            ChosenModel::Forest => ProfileModel::Forest,
            ChosenModel::Histogram => ProfileModel::Histogram,
            ChosenModel::MaxOfLast => ProfileModel::MaxOfLast,
        },
        scores,
        owned: resources(owned),
        high: report.high.map(resources),
        lends: resources(report.lends),
        reason: report.reason,
    };
    // Scores that are no numbers could not be sent.
    profile.sanitized()
}

fn resources(amount: Amount) -> CallResources {
    CallResources {
        milli_cores: amount.milli_cores,
        memory_bytes: amount.memory_bytes,
    }
}

impl Predictor for Learning {
    fn predict(&mut self, function: FunctionId, features: &Features) -> Demand {
        self.profiles().predict(function, features)
    }

    fn learn(&mut self, function: FunctionId, sample: Sample) {
        self.exchange().note(function, sample);
        self.0.samples.fetch_add(1, Ordering::Relaxed);
        self.adopt(function, sample);
    }

    fn adopt(&mut self, function: FunctionId, sample: Sample) {
        let mut profiles = self.profiles();
        profiles.learn(function, sample);
        let functions = u32::try_from(profiles.functions().count()).unwrap_or(u32::MAX);
        drop(profiles);
        self.0.functions.store(functions, Ordering::Relaxed);
    }

    fn begin_training(&mut self, function: FunctionId) {
        self.profiles().begin_training(function);
    }

    fn end_training(&mut self, function: FunctionId) {
        let trained = self.trained().take();
        self.profiles().end_training_with(function, trained);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(size: u64) -> Sample {
        Sample {
            features: Features {
                argument_bytes: size,
                ..Features::default()
            },
            allocation: Amount::new(1_000, 1 << 30),
            peak: Amount::new(100 * size, size << 20),
            duration_us: 100_000 * size,
            cpu_is_bound: false,
            memory_is_bound: false,
        }
    }

    #[test]
    fn learning_never_trains_in_its_thread() {
        let mut learning = Learning::default();
        let function = FunctionId(1);
        for number in 0..600 {
            learning.learn(function, sample(number % 9));
        }
        assert_eq!(learning.due(), Some(function));
        let uses_forests = || {
            let report = learning.profiles().report(
                function,
                &Lending {
                    owned: Amount::new(1_000, 1 << 30),
                    rules: Rules::default(),
                    is_on: true,
                    is_permitted: true,
                },
            );
            report.unwrap().model == ChosenModel::Forest
        };
        assert!(!uses_forests());
        learning.clone().begin_training(function);
        let trained = learning.training(function).unwrap().train();
        learning.keep_models(trained);
        assert!(!uses_forests(), "models count from the event on");
        learning.clone().end_training(function);
        assert!(uses_forests());
        assert_eq!(learning.due(), None);
    }

    #[test]
    fn samples_of_others_are_adopted_once_asked() {
        let (mut learning, tenant, lease) = (Learning::default(), TenantId([1; 16]), LeaseId([2; 16]));
        let (_, id) = learning.number(tenant, "f@1", Amount::new(1_000, 1 << 30));
        let theirs = vec![CallSample::default(); 5_000];
        assert!(learning.wanted_samples(tenant, "f@1", &theirs).is_none());
        learning.meet(tenant, id, lease, true);
        learning.meet(tenant, id, lease, true);
        assert_eq!(learning.messages().len(), 1);
        for _ in 0..2 {
            learning.learn(id, sample(1));
        }
        let (function, samples) = learning.wanted_samples(tenant, "f@1", &theirs).unwrap();
        assert_eq!((function, samples.len()), (id, MAX_SAMPLES - 2));
        for sample in samples {
            learning.adopt(function, sample);
        }
        // Only its own calls are reported.
        assert_eq!(learning.samples(), 2);
        let messages = learning.messages();
        let [NodeMessage::Samples { samples, .. }] = &messages[..] else {
            panic!("{messages:?}")
        };
        assert_eq!(samples.len(), 2);
        assert!(learning.wanted_samples(tenant, "f@1", &theirs).is_none());
    }

    #[test]
    fn report_names_function_samples_and_reason() {
        let (mut learning, tenant) = (Learning::default(), TenantId([1; 16]));
        let owned = Amount::new(1_000, 1 << 30);
        let (_, id) = learning.number(tenant, "m.f@12345678", owned);
        let reports = |learning: &Learning| learning.reports(tenant, "f", Rules::default(), false);
        assert!(reports(&learning).is_empty());
        for _ in 0..30 {
            let sample = Sample {
                features: Features::default(),
                allocation: owned,
                peak: Amount::new(100, 1 << 20),
                duration_us: 1_000_000,
                cpu_is_bound: false,
                memory_is_bound: false,
            };
            learning.learn(id, sample);
        }
        let all = reports(&learning);
        let [report] = &all[..] else { panic!("{all:?}") };
        assert_eq!((report.function.as_str(), report.samples), ("m.f@12345678", 30));
        assert_eq!(report.owned.milli_cores, 1_000);
        assert!(report.lends.milli_cores > 500, "{report:?}");
        assert!(report.reason.starts_with("It would lend about"), "{report:?}");
        // It can be sent and read.
        let text = serde_json::to_string(report).unwrap();
        assert_eq!(&serde_json::from_str::<LearntProfile>(&text).unwrap(), report);
        assert!(
            learning
                .reports(TenantId([2; 16]), "f", Rules::default(), true)
                .is_empty()
        );
        assert_eq!((learning.samples(), learning.functions()), (30, 1));
    }
}
