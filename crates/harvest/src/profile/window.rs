//! The last samples of one function.

use crate::amount::{Amount, Resource};
use crate::demand::{Features, Sample};
use crate::forest::{Row, row};
use crate::histogram::Histogram;

/// Samples that are kept of a function. More would make a change of its behaviour count later.
pub const MAX_SAMPLES: usize = 512;

/// The longest duration that a sample can have, in microseconds: 1,000 days. It keeps hostile values out of sums.
pub const MAX_DURATION_US: u64 = 1_000 * 86_400 * 1_000_000;

/// What is predicted about a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    Peak(Resource),
    Duration,
}

impl Measure {
    pub(crate) const ALL: [Self; 3] = [Self::Peak(Resource::Cpu), Self::Peak(Resource::Memory), Self::Duration];

    pub(crate) fn index(self) -> usize {
        match self {
            Self::Peak(Resource::Cpu) => 0,
            Self::Peak(Resource::Memory) => 1,
            Self::Duration => 2,
        }
    }

    /// The value of a sample.
    pub(crate) fn units(self, sample: &Sample) -> u64 {
        match self {
            Self::Peak(resource) => sample.peak.get(resource),
            Self::Duration => sample.duration_us,
        }
    }

    /// Whether the value of a sample is only a lower bound.
    pub(crate) fn is_bound(self, sample: &Sample) -> bool {
        match self {
            Self::Peak(Resource::Cpu) => sample.cpu_is_bound,
            Self::Peak(Resource::Memory) => sample.memory_is_bound,
            Self::Duration => false,
        }
    }
}

/// The last samples in slots, with a histogram of each measure. The oldest sample gives its slot to the newest.
#[derive(Debug, Clone, Default)]
pub(crate) struct Window {
    samples: Vec<Sample>,
    rows: Vec<Row>,
    next: usize,
    histograms: [Histogram; 3],
}

impl Window {
    /// Adds a sample. Returns its slot, and the features of the sample that had it before.
    pub(crate) fn add(&mut self, sample: Sample) -> (u16, Option<Row>) {
        let slot = self.next;
        self.next = (self.next + 1) % MAX_SAMPLES;
        let old = self.rows.get(slot).copied();
        if old.is_some() {
            self.samples[slot] = sample;
            self.rows[slot] = row(&sample.features);
        } else {
            self.samples.push(sample);
            self.rows.push(row(&sample.features));
        }
        for measure in Measure::ALL {
            let (units, is_bound) = (measure.units(&sample), measure.is_bound(&sample));
            self.histograms[measure.index()].set(slot as u16, units, is_bound);
        }
        (slot as u16, old)
    }

    /// A window of the last `count` samples only.
    pub(crate) fn last(&self, count: usize) -> Self {
        let mut last = Self::default();
        for sample in self.in_order().skip(self.len().saturating_sub(count)) {
            last.add(*sample);
        }
        last
    }

    /// The samples by slot.
    pub(crate) fn slots(&self) -> &[Sample] {
        &self.samples
    }

    /// The features of the samples by slot.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.samples.capacity() * size_of::<Sample>()
            + self.rows.capacity() * size_of::<Row>()
            + self.histograms.iter().map(Histogram::heap_bytes).sum::<usize>()
    }

    pub(crate) fn len(&self) -> usize {
        self.samples.len()
    }

    /// The samples, oldest first.
    pub(crate) fn in_order(&self) -> impl DoubleEndedIterator<Item = &Sample> + ExactSizeIterator {
        self.slots_by_age().map(|slot| &self.samples[slot])
    }

    /// The features of the samples, oldest first.
    pub(crate) fn rows_in_order(&self) -> impl DoubleEndedIterator<Item = &Row> {
        self.slots_by_age().map(|slot| &self.rows[slot])
    }

    fn slots_by_age(&self) -> impl DoubleEndedIterator<Item = usize> + ExactSizeIterator + use<> {
        let oldest = if self.samples.len() < MAX_SAMPLES { 0 } else { self.next };
        (0..self.samples.len()).map(move |age| (oldest + age) % MAX_SAMPLES)
    }

    pub(crate) fn histogram(&self, measure: Measure) -> &Histogram {
        &self.histograms[measure.index()]
    }
}

/// The sample with its values within bounds.
pub(crate) fn bounded(sample: Sample, max: Amount) -> Sample {
    let sizes = sample
        .features
        .sizes
        .map(|size| if size.is_finite() { size } else { 0.0 });
    Sample {
        features: Features {
            sizes,
            ..sample.features
        },
        allocation: sample.allocation.min(max),
        peak: sample.peak.min(max),
        duration_us: sample.duration_us.min(MAX_DURATION_US),
        ..sample
    }
}
