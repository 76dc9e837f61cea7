//! Registration and sharing of functions.

use std::sync::Arc;

use dayfly_protocol::api::{MAX_RANKS, Runtime};
use dayfly_protocol::bounds::MAX_FUNCTION_BYTES;
use dayfly_protocol::entry_point::CommandTemplate;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::executor::Form;
use dayfly_protocol::functions::FunctionRegistration;
use dayfly_protocol::ids::{CodeHash, FunctionId, TenantId};
use dayfly_store::system::now_ms;
use dayfly_store::tasks::{FunctionRecord, FunctionSpec};
use sha2::{Digest, Sha256};

use crate::Tasks;
use crate::function_names;
use crate::submission::first_half;

impl Tasks {
    /// Registers a function. Idempotent: registering a function again returns the existing one, with the given sharing
    /// if that is not empty.
    ///
    /// # Errors
    /// `InvalidRequest`, `TooLarge`, `LoadFailed`, `EnvironmentFailed` or `PythonMismatch` for a function that no
    /// worker could run; `NotFound` for an unknown team; those of the store.
    pub async fn register(
        &self,
        tenant: TenantId,
        mut given: FunctionRegistration,
    ) -> Result<Arc<FunctionRecord>, Failure> {
        if let Form::EntryPoint { .. } = given.form {
            // Its image may have no Python.
            given.runtime = Runtime::Native;
        }
        given.check_texts()?;
        if given.name.as_deref() == Some("") {
            return Err(Failure::new(
                Code::InvalidRequest,
                "the function's name is empty; leave it out, or give one",
            ));
        }
        function_names::check(given.name.as_deref().unwrap_or_default())?;
        check_runnable(&given)?;
        self.check_shared(&given.shared_with)?;
        let hash = CodeHash(Sha256::digest(&given.code[..]).into());
        let spec = FunctionSpec {
            description: given.description,
            source: given.source,
            form: given.form,
            runtime: given.runtime,
            image: given.image,
            resources: given.resources,
            repeatable: given.repeatable,
            // Sharing may change, and is no part of the id.
            shared_with: Vec::new(),
        };
        let described = serde_json::to_vec(&(&given.name, &spec))
            .map_err(|error| Failure::new(Code::InvalidRequest, error.to_string()))?;
        if described.len() > MAX_FUNCTION_BYTES {
            let text = format!(
                "the function's description has {} bytes; {MAX_FUNCTION_BYTES} are allowed: shorten its environment",
                described.len()
            );
            return Err(Failure::new(Code::TooLarge, text));
        }
        let mut id = Sha256::new();
        for part in [&tenant.0[..], &hash.0, &described] {
            id.update((part.len() as u64).to_le_bytes());
            id.update(part);
        }
        let id = FunctionId(first_half(id));
        self.state().functions.note_use(id, now_ms());
        if let Some(known) = self.function(id) {
            let is_unchanged = given.shared_with.is_empty() || known.spec.shared_with == given.shared_with;
            return match is_unchanged {
                true => Ok(known),
                false => self.share(tenant, &id.to_string(), given.shared_with).await,
            };
        }
        let spec = FunctionSpec {
            shared_with: given.shared_with,
            ..spec
        };
        let registering = self.changing_functions.read().await;
        let record = FunctionRecord {
            id,
            tenant,
            name: given.name,
            version: 0,
            hash,
            spec,
            registered_at_ms: now_ms(),
        };
        let kept = Arc::new(self.store.register(record, given.code.clone()).wait().await?);
        let mut state = self.state();
        state.functions.keep_code(id, given.code);
        state.functions.extend([Arc::clone(&kept)]);
        drop(registering);
        Ok(kept)
    }

    /// Sets which other tenants may run a tenant's function: one version by its id, or all versions of a name. Returns
    /// the last version.
    ///
    /// # Errors
    /// `NotFound` for an unknown function or team, and those of the store.
    pub async fn share(
        &self,
        tenant: TenantId,
        which: &str,
        shared_with: Vec<String>,
    ) -> Result<Arc<FunctionRecord>, Failure> {
        self.check_shared(&shared_with)?;
        let _changing = self.changing_functions.write().await;
        let functions = self.own_functions_named(tenant, which)?;
        let changed = |function: &Arc<FunctionRecord>| {
            let mut changed = FunctionRecord::clone(function);
            changed.spec.shared_with.clone_from(&shared_with);
            Arc::new(changed)
        };
        let changed: Vec<_> = functions.iter().map(changed).collect();
        let last = changed.last().cloned().ok_or_else(|| {
            let text = format!("you have no function `{which:.80}`");
            Failure::new(Code::NotFound, text)
        })?;
        let specs = changed.iter().map(|function| (function.id, function.spec.clone()));
        self.store.change(specs.collect()).wait().await?;
        self.state().functions.extend(changed);
        Ok(last)
    }
}

/// Refuses a function that no worker could run in its environment.
fn check_runnable(given: &FunctionRegistration) -> Result<(), Failure> {
    let cores = given.resources.cores.for_worker();
    cores.map_err(|error| Failure::new(Code::InvalidRequest, error.to_string()))?;
    let ranks = given.resources.ranks;
    if ranks > MAX_RANKS {
        let text = format!("a function of {ranks} ranks; {MAX_RANKS} are allowed");
        return Err(Failure::new(Code::TooLarge, text));
    }
    if ranks > 0 && !matches!(given.form, Form::Python { .. } | Form::Source { .. }) {
        let text = "ranks are called through Python: register a Python function, or a `dayfly.Command` for a program";
        return Err(Failure::new(Code::LoadFailed, text));
    }
    if let Form::EntryPoint { .. } = given.form {
        if given.image.is_none() {
            let text = "an entry point is that of a container image; name the image";
            return Err(Failure::new(Code::LoadFailed, text));
        }
        CommandTemplate::parse(&given.code).map_err(|text| Failure::new(Code::LoadFailed, text))?;
    }
    if let Some(image) = &given.image {
        if image.is_empty() {
            let text = "the image's name is empty; leave it out, or name one";
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        if given.runtime.environment().is_some() {
            let text = "an image contains what functions import; name an image or an environment, not both";
            return Err(Failure::new(Code::EnvironmentFailed, text));
        }
    }
    let Some(environment) = given.runtime.environment() else {
        return Ok(());
    };
    environment.check()?;
    match &given.form {
        Form::Python { python, .. } if !environment.python.is_empty() && environment.python != *python => {
            Err(Failure::new(
                Code::PythonMismatch,
                format!(
                    "Python {python} pickled the function, and its environment has Python {}, which cannot read that; \
                     leave the environment's version out, or register the function as source (source=True)",
                    environment.python
                ),
            ))
        }
        _ => Ok(()),
    }
}
