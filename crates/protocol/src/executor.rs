//! Messages between a node and its executors over the executor's control socket (a Unix `SOCK_SEQPACKET` pair with one
//! JSON message and its descriptors per packet), and the payload of the worker's own `load` function.
//!
//! The node trusts nothing that it reads here, because user code runs in the executor.

use serde::{Deserialize, Serialize};

use crate::ids::{ChannelId, CodeHash, Incarnation, WorkerIndex};

/// Most bytes of a packet.
pub const MAX_PACKET_BYTES: usize = 64 << 10;
/// A call of this length is a long one, in microseconds. Only long calls are harvested, and only their workers send
/// [`FromExecutor::CallChanged`].
pub const MIN_LONG_CALL_US: u64 = 20_000;
/// The descriptor number of an executor's control socket.
pub const CONTROL_FD: i32 = 3;

/// Messages from node to executor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToExecutor {
    /// Makes the process the executor of a lease. It manages the lease's workers, each of which also gets this packet.
    /// Descriptors: the meters file ([`crate::executor::METER_BYTES`] for each worker), and the file of the cores that
    /// warm workers share, if the node limits their calls. How long workers poll is in the meters file.
    Assign {
        /// Number of workers, those in `retired` included.
        workers: u16,
        /// Numbers of workers that the lease has given back. They are not started.
        #[serde(default)]
        retired: Vec<u16>,
        /// Number of meters in the file, for workers that may be added.
        meters: u16,
        /// Cores of each worker.
        cores_per_worker: u16,
        /// Cores of a hot lease, those of its first worker first. Empty for a warm lease, whose workers use
        /// `shared_cores`.
        cores: Vec<u16>,
        /// Cores that warm workers and the parent may use.
        shared_cores: Vec<u16>,
        /// GPUs of the lease in the syntax of `CUDA_VISIBLE_DEVICES`, those of its first worker first; absent if the
        /// node does not manage GPUs.
        #[serde(default)]
        gpus: Option<Vec<String>>,
        /// GPUs of each worker.
        #[serde(default)]
        gpus_per_worker: u16,
        /// Directory of code files, each named after its hash.
        code_dir: String,
        /// Most bytes of one output.
        max_output_bytes: u64,
        /// Whether the executor pins its workers to their cores. An isolated executor may not; its node does.
        pins: bool,
        /// Most memory that one worker may map in bytes, if nothing limits the lease as a whole; 0 for no limit.
        worker_memory_bytes: u64,
        /// Whether workers of long calls send [`FromExecutor::CallChanged`].
        #[serde(default)]
        announces_calls: bool,
    },
    /// Serves a channel. Descriptors: the channel's memory file (shm), or the connection (tcp, tls, libfabric).
    Attach {
        /// The worker that serves it.
        worker: WorkerIndex,
        /// Id of the channel.
        channel: ChannelId,
        /// One of [`crate::hello::transport`].
        transport: u8,
        /// Slots of each ring.
        slots: u16,
        /// Stride of each ring in bytes.
        stride_bytes: u32,
        /// Bytes of each side's bulk region.
        bulk_bytes: u64,
        /// Bit set of [`crate::hello::options`] that both sides promised.
        options: u32,
        /// For libfabric: the providers that this node offers, with their domains if configured.
        #[serde(default)]
        fabrics: Vec<String>,
        /// For tls and libfabric: PKCS#8 of the executor's key for this lease.
        executor_key_pkcs8: Option<Vec<u8>>,
        /// For tls and libfabric: the only client key to accept.
        client_key: Option<crate::ids::PublicKey>,
    },
    /// Redirects a worker's output, so that each piece is attributed to the call that printed it. Descriptors: the
    /// write ends of two pipes, for standard output and standard error.
    RedirectOutput {
        /// The worker.
        worker: WorkerIndex,
    },
    /// Kills and replaces a worker.
    Kill {
        /// The worker.
        worker: WorkerIndex,
    },
    /// Starts more workers. One message for all, because a socket holds few.
    Start {
        /// Their numbers, which no worker has.
        workers: Vec<WorkerIndex>,
    },
    /// Kills workers without replacing them.
    Retire {
        /// The workers.
        workers: Vec<WorkerIndex>,
    },
}

/// Messages from executor to node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromExecutor {
    /// Started and waiting to be assigned to a lease.
    Ready {
        /// Its runtime: `native`, or `python 3.11.7 cloudpickle 3.1.0`.
        runtime: String,
    },
    /// A worker was forked, for the first time or as a replacement. Descriptor: its pidfd.
    WorkerStarted {
        /// The worker.
        worker: WorkerIndex,
        incarnation: Incarnation,
        /// Its process id, in the executor's PID namespace.
        pid: u32,
    },
    /// A worker exited (`signal` 0) or was killed by a signal.
    WorkerEnded {
        /// The worker.
        worker: WorkerIndex,
        incarnation: Incarnation,
        /// Exit status, when `signal` is 0.
        status: i32,
        /// Signal that killed it, or 0.
        signal: i32,
    },
    /// The worker has closed a channel whose peer disconnected (streams only).
    Detached {
        /// The worker.
        worker: WorkerIndex,
        /// Id of the channel.
        channel: ChannelId,
    },
    /// A call has begun or ended, in a worker whose call before was a long one. The node reads its meter. Not sent if
    /// the socket is full.
    CallChanged {
        /// The worker.
        worker: WorkerIndex,
    },
    /// The executor cannot continue. It exits after this message.
    Failed { message: String },
}

/// Payload of an invocation of [`crate::ids::FunctionIndex::LOAD`]. The reply is the index as two little-endian bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadFunction {
    /// Hash of the code. The node must have the code already.
    pub hash: CodeHash,
    /// Form of the code.
    #[serde(flatten)]
    pub form: Form,
}

impl LoadFunction {
    /// Returns the label under which the function is metered: its name, cut to the meter's bound, and the beginning of
    /// its hash.
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

/// The kind of a piece of code, and how to call it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "form", rename_all = "snake_case")]
pub enum Form {
    /// A symbol `uint32_t f(void* in, uint32_t size, void* out)` of a shared library.
    Plain {
        /// Name of the symbol.
        symbol: String,
    },
    /// A symbol `int32_t f(dfly_context*, const void* in, size_t in_len, void* out, size_t out_capacity, size_t* out_len)`.
    Checked {
        /// Name of the symbol.
        symbol: String,
    },
    /// A Python callable, pickled by cloudpickle.
    Python {
        /// `major.minor` of the Python that pickled it.
        python: String,
        /// Version of the cloudpickle that pickled it.
        cloudpickle: String,
        /// Module and name, for display.
        #[serde(default)]
        name: String,
    },
    /// The text of a Python module, for any version of Python.
    Source {
        /// Name of the function to call.
        entry: String,
    },
    /// The entry point of the workers' container image. The code is a JSON array of words, which follow the image's
    /// entry point. `{name}` in a word stands for an argument, `{{` and `}}` for braces. A word that is one such name
    /// alone becomes as many words as its list has elements. Calls are in JSON, and the result is the standard output
    /// as a JSON string.
    EntryPoint {
        /// Display name.
        #[serde(default)]
        name: String,
    },
}

impl Form {
    /// Name for display.
    pub fn name(&self) -> &str {
        match self {
            Self::Plain { symbol } | Self::Checked { symbol } => symbol,
            Self::Python { name, .. } => name,
            Self::Source { entry } => entry,
            Self::EntryPoint { name } => name,
        }
    }

    /// Whether calls and results are JSON.
    pub fn speaks_json(&self) -> bool {
        matches!(
            self,
            Self::Python { .. } | Self::Source { .. } | Self::EntryPoint { .. }
        )
    }
}

/// The environment variable with the GPUs that a process sees: NVIDIA's, which AMD's libraries also respect.
pub const VISIBLE_GPUS: &str = "CUDA_VISIBLE_DEVICES";
/// Bytes of a function's name in a meter, including its hash.
pub const METERED_NAME_BYTES: usize = 96;
/// Hexadecimal digits of the hash at the end of that name.
const LABEL_HASH: usize = 8;
/// Functions that a worker's meter distinguishes. The last block is for all others.
pub const METERED_FUNCTIONS: usize = 16;
/// Bytes of one worker's meter in the meters file: three 128-byte blocks, one block for each function, and one for the
/// node's orders. Each block has one writer.
pub const METER_BYTES: usize = (4 + METERED_FUNCTIONS) * 128;
