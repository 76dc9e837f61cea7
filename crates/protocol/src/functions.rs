//! Registered functions in the bodies of the manager's HTTP API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::{LoanTerms, Placement, Runtime, is_default};
use crate::blob::Blob;
use crate::cores::MilliCores;
use crate::executor::Form;
use crate::ids::{CodeHash, FunctionId};

/// Resources that one execution of a function needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Resources {
    /// Cores of its worker.
    #[schema(value_type = f64, minimum = 0.01, maximum = 4_294_967_295.0, multiple_of = 0.001)]
    pub cores: MilliCores,
    /// Memory of its worker in bytes; 0 for the node's share per worker.
    pub memory_bytes: u64,
    /// GPUs of its worker. The worker sees no others.
    #[serde(skip_serializing_if = "is_default")]
    pub gpus: u16,
    /// Time limit of one execution in milliseconds, after which all its processes are killed; 0 for no limit.
    pub walltime_ms: u32,
    /// Number of workers that one execution uses, all of them or none. Each worker calls the function as a rank of one
    /// group, and the result is the list of their results. 0 for a single worker without a group.
    #[serde(skip_serializing_if = "is_default")]
    #[schema(maximum = 4096)]
    pub ranks: u16,
    /// Placement of the ranks on nodes.
    #[serde(skip_serializing_if = "is_default")]
    pub placement: Placement,
    /// What executions lend and borrow.
    #[serde(flatten)]
    pub loans: LoanTerms,
}

impl Resources {
    /// Number of workers of one execution, at least 1.
    pub fn workers(&self) -> u16 {
        self.ranks.max(1)
    }
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            cores: MilliCores::ONE,
            memory_bytes: 0,
            gpus: 0,
            walltime_ms: 0,
            ranks: 0,
            placement: Placement::default(),
            loans: LoanTerms::default(),
        }
    }
}

/// A function to register. Idempotent: registering the same function again returns the existing one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionRegistration {
    /// Name of the function. Functions of one owner with the same name are versions; the name refers to the latest.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 128, pattern = "^[^/@]*$")]
    pub name: Option<String>,
    /// Description, for display.
    #[serde(default)]
    #[schema(max_length = 16_384)]
    pub description: String,
    /// Source, for display only.
    #[serde(default)]
    #[schema(max_length = 262_144)]
    pub source: String,
    /// Form of `code`.
    pub form: Form,
    /// Runtime that it needs. The default is any Python, which suits source.
    #[serde(default = "Runtime::any_python")]
    pub runtime: Runtime,
    /// Container image to run in, as a lease names it; absent for workers without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub image: Option<String>,
    /// The code: the pickle, the library or the text.
    pub code: Blob,
    /// Resources of one execution.
    #[serde(default)]
    pub resources: Resources,
    /// Whether it may be executed again after a fault that may have interrupted an execution.
    #[serde(default)]
    pub repeatable: bool,
    /// Names of tenants other than the owner that may run it; `team:NAME` for a team, `*` for everyone.
    #[serde(default)]
    pub shared_with: Vec<String>,
}

/// A registered function.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FunctionStatus {
    /// Id of the function.
    pub id: FunctionId,
    /// Name, if it has one.
    pub name: Option<String>,
    /// Version among the owner's functions of this name, from 1; 0 without a name.
    pub version: u32,
    /// Name of the owner.
    pub owner: String,
    /// Description, for display.
    pub description: String,
    /// Source, for display.
    pub source: String,
    /// SHA-256 of the code.
    pub hash: CodeHash,
    /// Form of the code.
    pub form: Form,
    /// Runtime that it needs.
    pub runtime: Runtime,
    /// Container image to run in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Resources of one execution.
    pub resources: Resources,
    /// Whether it may be executed again after a fault.
    pub repeatable: bool,
    /// Tenants other than the owner that may run it.
    pub shared_with: Vec<String>,
    /// Time of registration, in milliseconds since the Unix epoch.
    pub registered_at_ms: u64,
}
