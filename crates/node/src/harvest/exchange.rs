//! Samples on their way between this node and its manager, which keeps them for nodes that have not run a function.

use std::collections::{BTreeMap, VecDeque};

use dayfly_harvest::{Amount, Features, FunctionId, Sample};
use dayfly_protocol::api::CallResources;
use dayfly_protocol::call_samples::{CallSample, MAX_REPORTED_FUNCTIONS, MAX_REPORTED_SAMPLES};
use dayfly_protocol::ids::{LeaseId, TenantId};
use dayfly_protocol::node_messages::NodeMessage;

/// Most samples that wait for the next report. Beyond it, the oldest is not reported.
const MAX_WAITING: usize = 512;
/// Most functions whose samples are asked for or expected. Beyond it, a function learns from its own calls only.
const MAX_ASKED: usize = 256;

/// Samples to report, and functions whose samples to ask for.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    unreported: VecDeque<(FunctionId, Sample)>,
    /// Functions to ask for, by a lease that runs them.
    wanted: VecDeque<(LeaseId, String)>,
    /// Functions that were asked for, or will be.
    expected: BTreeMap<(TenantId, String), FunctionId>,
}

impl Exchange {
    /// Notes a sample of this node.
    pub fn note(&mut self, function: FunctionId, sample: Sample) {
        if self.unreported.len() >= MAX_WAITING {
            self.unreported.pop_front();
        }
        self.unreported.push_back((function, sample));
    }

    /// Asks for the samples of a function that runs in this lease.
    pub fn want(&mut self, tenant: TenantId, function: &str, lease: LeaseId, id: FunctionId) {
        if self.expected.len() < MAX_ASKED {
            self.expected.insert((tenant, function.to_owned()), id);
            self.wanted.push_back((lease, function.to_owned()));
        }
    }

    /// The function whose samples were asked for, once.
    pub fn expected(&mut self, tenant: TenantId, function: &str) -> Option<FunctionId> {
        self.expected.remove(&(tenant, function.to_owned()))
    }

    /// The next messages to the manager. `name_of` returns the last lease and the name of a function.
    pub fn messages(&mut self, name_of: impl Fn(FunctionId) -> Option<(LeaseId, String)>) -> Vec<NodeMessage> {
        let asked = self.wanted.len().min(MAX_REPORTED_FUNCTIONS);
        let asked = self.wanted.drain(..asked);
        let mut messages: Vec<_> = asked
            .map(|(lease, function)| NodeMessage::SamplesWanted { lease, function })
            .collect();
        let mut reported: BTreeMap<FunctionId, Vec<CallSample>> = BTreeMap::new();
        let mut left = MAX_REPORTED_SAMPLES;
        self.unreported.retain(|(function, sample)| {
            let has_room = reported.contains_key(function) || reported.len() < MAX_REPORTED_FUNCTIONS;
            if left == 0 || !has_room {
                return true;
            }
            left -= 1;
            reported.entry(*function).or_default().push(to_message(sample));
            false
        });
        messages.extend(reported.into_iter().filter_map(|(id, samples)| {
            let (lease, function) = name_of(id)?;
            Some(NodeMessage::Samples {
                lease,
                function,
                samples,
            })
        }));
        messages
    }
}

fn to_message(sample: &Sample) -> CallSample {
    let resources = |amount: Amount| CallResources {
        milli_cores: amount.milli_cores,
        memory_bytes: amount.memory_bytes,
    };
    CallSample {
        argument_bytes: sample.features.argument_bytes,
        sizes: sample.features.sizes,
        allocation: resources(sample.allocation),
        peak: resources(sample.peak),
        duration_us: sample.duration_us,
        cpu_is_bound: sample.cpu_is_bound,
        memory_is_bound: sample.memory_is_bound,
    }
    .sanitized()
}

/// The sample in a manager's message.
pub(super) fn from_message(sample: CallSample) -> Sample {
    let sample = sample.sanitized();
    let amount = |of: CallResources| Amount::new(of.milli_cores, of.memory_bytes);
    Sample {
        features: Features {
            argument_bytes: sample.argument_bytes,
            sizes: sample.sizes,
        },
        allocation: amount(sample.allocation),
        peak: amount(sample.peak),
        duration_us: sample.duration_us,
        cpu_is_bound: sample.cpu_is_bound,
        memory_is_bound: sample.memory_is_bound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(duration_us: u64) -> Sample {
        Sample {
            features: Features::default(),
            allocation: Amount::new(1_000, 1 << 30),
            peak: Amount::new(500, 1 << 20),
            duration_us,
            cpu_is_bound: false,
            memory_is_bound: true,
        }
    }

    #[test]
    fn samples_are_reported_in_bounded_messages() {
        let mut exchange = Exchange::default();
        for number in 0..1_000 {
            exchange.note(FunctionId(number % 40), sample(number));
        }
        assert_eq!(exchange.unreported.len(), MAX_WAITING);
        let name_of = |id: FunctionId| Some((LeaseId([1; 16]), format!("f{}@1", id.0)));
        let mut reported = 0;
        loop {
            let messages = exchange.messages(name_of);
            if messages.is_empty() {
                break;
            }
            assert!(messages.len() <= MAX_REPORTED_FUNCTIONS);
            let counts = messages.iter().map(|message| match message {
                NodeMessage::Samples { samples, .. } => samples.len(),
                other => panic!("{other:?}"),
            });
            let count: usize = counts.sum();
            assert!(count <= MAX_REPORTED_SAMPLES);
            reported += count;
        }
        assert_eq!(reported, MAX_WAITING);
    }

    #[test]
    fn samples_are_expected_once_they_are_wanted() {
        let (mut exchange, tenant, lease) = (Exchange::default(), TenantId([1; 16]), LeaseId([2; 16]));
        assert_eq!(exchange.expected(tenant, "f@1"), None);
        exchange.want(tenant, "f@1", lease, FunctionId(7));
        let asked = exchange.messages(|_| None);
        assert!(matches!(&asked[..], [NodeMessage::SamplesWanted { lease: of, .. }] if *of == lease));
        assert_eq!(exchange.expected(TenantId([3; 16]), "f@1"), None);
        assert_eq!(exchange.expected(tenant, "f@1"), Some(FunctionId(7)));
        assert_eq!(exchange.expected(tenant, "f@1"), None);
    }

    #[test]
    fn sample_is_the_same_after_its_way() {
        assert_eq!(from_message(to_message(&sample(5))), sample(5));
    }
}
