//! What goes into the engine, and what comes out.

use serde::{Deserialize, Serialize};

use crate::amount::{Amount, Resource};
use crate::demand::{CallId, Features, FunctionId, Sample, TenantId};

/// Whether a node harvests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Nothing is measured.
    #[default]
    Off,
    /// Profiles are learnt and nothing is lent.
    Watch,
    /// Idle units are lent.
    On,
}

/// The ranks of a group on one node. They lend what all of them can, and borrow all or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Unique on the node.
    pub id: u64,
    /// Ranks on this node.
    pub size: u32,
}

/// A call begins.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    /// The call. A call that already runs is ignored.
    pub call: CallId,
    /// Who pays for it.
    pub tenant: TenantId,
    /// What it runs.
    pub function: FunctionId,
    /// What is known about it.
    #[serde(default)]
    pub features: Features,
    /// What it reserved. It has this at any time it wants.
    pub owned: Amount,
    /// Whether it lends what it does not use.
    pub lends: bool,
    /// Whether it may borrow processor time.
    pub borrows_cpu: bool,
    /// Whether it may borrow memory. It must bear being ended for it.
    pub borrows_memory: bool,
    /// The group whose rank it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Group>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The function returned or raised. Only such calls are learnt from.
    Returned,
    /// It was cancelled, killed, or lost with its worker.
    Aborted,
}

/// What happened on a node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    /// Harvesting is switched.
    Mode {
        /// The new mode.
        mode: Mode,
    },
    /// The cores and memory that calls share, without hot workers' cores.
    Capacity {
        /// All of it, owned or not.
        shared: Amount,
    },
    /// A call begins.
    Begin(Begin),
    /// What a call used in a window.
    Usage {
        /// The call.
        call: CallId,
        /// Its mean use of processors in the window, in thousandths of a core.
        milli_cores: u64,
        /// Its memory at the end of the window.
        memory_bytes: u64,
        /// Share of the window, in millionths, in which it waited for a processor.
        waiting_ppm: u32,
    },
    /// A call was refused memory.
    OutOfMemory {
        /// The call.
        call: CallId,
    },
    /// What a borrower holds after it was asked to give memory back.
    Reclaimed {
        /// The borrower.
        call: CallId,
        /// Its memory now.
        memory_bytes: u64,
    },
    /// A limit could not be changed.
    Refused {
        /// The call.
        call: CallId,
        /// Which limit.
        resource: Resource,
        /// Whether it should have been raised.
        raising: bool,
    },
    /// A call ended.
    End {
        /// The call.
        call: CallId,
        /// How.
        outcome: Outcome,
    },
    /// A call of a function ended on another node. It is learnt from.
    Adopted {
        /// The function.
        function: FunctionId,
        /// What the call used.
        sample: Sample,
    },
    /// The training of a function's models begins, on the samples until now.
    TrainingBegun {
        /// The function.
        function: FunctionId,
    },
    /// That training has ended: its models predict the calls from now on.
    TrainingEnded {
        /// The function.
        function: FunctionId,
    },
    /// Time passes. Sent once in a window, after the usages.
    Tick,
}

/// What a node has to do, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Action {
    /// Set a limit of a call.
    Limit {
        /// The call.
        call: CallId,
        /// Which limit.
        resource: Resource,
        /// Its new value.
        units: u64,
    },
    /// Reclaim memory of a borrower, whose limit fell, and report [`Event::Reclaimed`].
    Reclaim {
        /// The borrower.
        call: CallId,
        /// How much it has to give back.
        memory_bytes: u64,
        /// When it ends otherwise.
        by_us: u64,
    },
    /// End a borrower that did not give memory back, or whose limit cannot be lowered.
    EndCall {
        /// The borrower.
        call: CallId,
    },
}

/// What one call owns, uses, lends and borrows now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LoanView {
    /// What it owns.
    pub owned: Amount,
    /// What it used in the last window.
    pub used: Amount,
    /// What it put into the pool.
    pub offered: Amount,
    /// The part of `offered` that borrowers have.
    #[serde(default)]
    pub lent: Amount,
    /// What it has of others.
    pub borrowed: Amount,
}

/// Events that are worth counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Offers to the pool.
    pub offers: u64,
    /// Grants to borrowers.
    pub loans: u64,
    /// Offers that the safeguard took back.
    pub safeguards: u64,
    /// Offers that were taken back since nobody measured their lender.
    pub unmeasured: u64,
    /// Borrowers that were ended.
    pub ended: u64,
    /// Calls that ran out of memory.
    pub out_of_memory: u64,
}
