//! What a node and its executors say over the executor's control socket (a Unix `SOCK_SEQPACKET` pair; one JSON message
//! per packet, descriptors beside it), and the payload of the worker's own `load` function.
//!
//! The node trusts nothing it reads here: user code lives in the executor.

use serde::{Deserialize, Serialize};

use crate::ids::{ChannelId, CodeHash, Incarnation, WorkerIndex};

/// No packet is longer.
pub const MAX_PACKET_BYTES: usize = 64 << 10;
/// The descriptor under which an executor finds its control socket.
pub const CONTROL_FD: i32 = 3;

/// Node to executor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToExecutor {
    /// Become the executor of a lease: see to its workers, each of which gets this packet too. Descriptors: the meters
    /// file ([`crate::executor::METER_BYTES`] for each worker), and for a warm lease the file of the cores that it shares.
    Assign {
        /// How many workers.
        workers: u16,
        /// Cores of each worker.
        cores_per_worker: u16,
        /// Cores of a hot lease, those of its first worker first; empty for a warm one, whose workers use `shared_cores`.
        cores: Vec<u16>,
        /// Cores that warm workers and the parent may use.
        shared_cores: Vec<u16>,
        /// Milliseconds that a worker polls after an invocation before it sleeps; `u32::MAX` for ever.
        hot_for_ms: u32,
        /// GPUs of the lease, those of its first worker first, as `CUDA_VISIBLE_DEVICES` has them; none where the node counts none.
        #[serde(default)]
        gpus: Option<Vec<String>>,
        /// GPUs of each worker.
        #[serde(default)]
        gpus_per_worker: u16,
        /// Directory of code files, each named by its hash.
        code_dir: String,
        /// Most bytes that one output may have.
        max_output_bytes: u64,
        /// Whether the executor puts its workers on their cores; an isolated one may not, and its node does.
        pins: bool,
        /// Most memory that one worker may map, where nothing bounds all of them together; 0 for no limit.
        worker_memory_bytes: u64,
    },
    /// Serve a channel. Descriptors: the channel's memory file (shm), or the connection (tcp, tls, libfabric).
    Attach {
        /// Which worker.
        worker: WorkerIndex,
        /// The channel.
        channel: ChannelId,
        /// One of [`crate::hello::transport`].
        transport: u8,
        /// Slots of each ring.
        slots: u16,
        /// Stride of each ring.
        stride_bytes: u32,
        /// Bulk bytes of each side.
        bulk_bytes: u64,
        /// Union of [`crate::hello::options`] that both sides promised.
        options: u32,
        /// For libfabric: the providers that this node offers, each with its domain if one is named.
        #[serde(default)]
        fabrics: Vec<String>,
        /// For tls and libfabric: PKCS#8 of the executor's key for this lease.
        executor_key_pkcs8: Option<Vec<u8>>,
        /// For tls and libfabric: the only client key to accept.
        client_key: Option<crate::ids::PublicKey>,
    },
    /// What this worker prints goes into these from now on, so that it is known which call printed it. Descriptors: the ends to
    /// write to of two pipes, for standard output and error.
    Prints {
        /// Which worker.
        worker: WorkerIndex,
    },
    /// Kill and replace this worker.
    Kill {
        /// Which worker.
        worker: WorkerIndex,
    },
}

/// Executor to node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromExecutor {
    /// Started and waiting to be assigned.
    Ready {
        /// What it runs: `native`, or `python 3.11.7 cloudpickle 3.1.0`.
        runtime: String,
    },
    /// A worker was forked, at first or again. Descriptor: its pidfd.
    WorkerStarted {
        /// Which.
        worker: WorkerIndex,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Its process id, as the executor counts.
        pid: u32,
    },
    /// A worker ended by itself (`signal` 0) or by a signal.
    WorkerEnded {
        /// Which.
        worker: WorkerIndex,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Exit status, when `signal` is 0.
        status: i32,
        /// Signal that killed it, or 0.
        signal: i32,
    },
    /// The worker is done with a channel whose peer went away (streams only).
    Detached {
        /// Which.
        worker: WorkerIndex,
        /// The channel.
        channel: ChannelId,
    },
    /// The executor cannot go on; it exits after this.
    Failed {
        /// Why.
        message: String,
    },
}

/// Payload of an invocation of [`crate::ids::FunctionIndex::LOAD`]; the reply is the index as two little-endian bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadFunction {
    /// Hash of the code, which the node must have.
    pub hash: CodeHash,
    /// What the code is.
    #[serde(flatten)]
    pub form: Form,
}

impl LoadFunction {
    /// What it is called where its use is told apart: its name, cut to what a meter holds, and the beginning of its hash.
    pub fn label(&self) -> String {
        let hash = self.hash.to_string();
        let printable = self.form.name().chars().filter(|c| !c.is_control());
        let mut name: String = printable.collect();
        while name.len() + 1 + LABEL_HASH > METERED_NAME_BYTES {
            name.pop();
        }
        format!("{name}@{}", &hash[..LABEL_HASH])
    }
}

/// What a piece of code is and how to call it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "form", rename_all = "snake_case")]
pub enum Form {
    /// A symbol `uint32_t f(void* in, uint32_t size, void* out)` of a shared library.
    Plain {
        /// Its name.
        symbol: String,
    },
    /// A symbol `int32_t f(dfly_context*, const void* in, size_t in_len, void* out, size_t out_capacity, size_t* out_len)`.
    Checked {
        /// Its name.
        symbol: String,
    },
    /// A Python callable, pickled by cloudpickle.
    Python {
        /// `major.minor` of the Python that pickled it.
        python: String,
        /// Version of the cloudpickle that pickled it.
        cloudpickle: String,
        /// Module and name, for people.
        #[serde(default)]
        name: String,
    },
    /// The text of a Python module, for whatever version of Python the worker has.
    Source {
        /// The function in it to call.
        entry: String,
    },
    /// The program that the workers' container image begins with. The code is a JSON array of words, which come behind those of the
    /// image's entry point; `{name}` in them stands for an argument, `{{` and `}}` for braces, and a word that is one such name alone
    /// becomes as many words as its list has. It is called in JSON, and answers what it writes on standard output, as a JSON text.
    EntryPoint {
        /// For people.
        #[serde(default)]
        name: String,
    },
}

impl Form {
    /// Its name, for people.
    pub fn name(&self) -> &str {
        match self {
            Self::Plain { symbol } | Self::Checked { symbol } => symbol,
            Self::Python { name, .. } => name,
            Self::Source { entry } => entry,
            Self::EntryPoint { name } => name,
        }
    }

    /// Whether it takes calls in JSON, and answers them so.
    pub fn speaks_json(&self) -> bool {
        matches!(
            self,
            Self::Python { .. } | Self::Source { .. } | Self::EntryPoint { .. }
        )
    }
}

/// The environment variable that says which GPUs a process sees: NVIDIA's, which AMD's libraries follow as well.
pub const VISIBLE_GPUS: &str = "CUDA_VISIBLE_DEVICES";
/// Bytes of a function's name in a meter.
pub const METERED_NAME_BYTES: usize = 96;
/// Hexadecimal digits of its hash at the end of it.
const LABEL_HASH: usize = 8;
/// Functions that a worker's meter tells apart; the last block is for all others.
pub const METERED_FUNCTIONS: usize = 16;
/// Meter of one worker in the meters file: three 128-byte blocks, and one for each function, all with one writer.
pub const METER_BYTES: usize = (3 + METERED_FUNCTIONS) * 128;
