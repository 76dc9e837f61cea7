//! Repetition of failed tasks, with the arguments that the store kept.

use std::sync::Arc;

use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::TaskId;
use dayfly_protocol::tasks::{AcceptedTasks, TaskInput, TaskOptions, TaskSubmission};
use dayfly_store::tasks::{MAX_SHORT_ARGUMENTS, TaskSpec};

use crate::{Submitter, Tasks};

impl Tasks {
    /// Submits a failed task of this submitter again, as a new task with the same function, arguments, tag and options.
    ///
    /// # Errors
    /// `NotFound` if the submitter has no such task, or its arguments were not [kept](super::contents::Contents::has_room); `InvalidRequest` if it has not
    /// failed; and those of [`Tasks::submit`].
    pub async fn repeat(self: &Arc<Self>, by: Submitter, id: TaskId) -> Result<AcceptedTasks, Failure> {
        let found = self.store.task(id).wait().await?;
        let record = found.filter(|record| record.spec.tenant == by.tenant);
        let record = record.ok_or_else(|| Failure::new(Code::NotFound, format!("you have no task {id}")))?;
        if !matches!(record.ended, Some((_, Some(_)))) {
            let text = format!("task {id} has not failed; only failed tasks can be retried");
            return Err(Failure::new(Code::InvalidRequest, text));
        }
        let kept = self.store.kept_arguments(id).wait().await?;
        let kept = kept.ok_or_else(|| {
            let text = format!(
                "the arguments of task {id} were not kept: they exceed {MAX_SHORT_ARGUMENTS} bytes, and you had used more \
                 than half of your quota of contents when it ended; submit it again with its arguments"
            );
            Failure::new(Code::NotFound, text)
        })?;
        let (arguments, content) = kept.split();
        let spec = record.spec;
        // The account of a tenant is chosen anew.
        let endpoint = self.endpoint(&spec.endpoint.to_string());
        let endpoint = endpoint
            .and_then(|endpoint| endpoint.of)
            .map_or(spec.endpoint, |of| of.endpoint);
        let submission = TaskSubmission {
            function: spec.function,
            endpoint: Some(endpoint.to_string()),
            tag: spec.tag.clone(),
            options: options_of(&spec),
            tasks: vec![TaskInput {
                arguments,
                content,
                after: spec.after,
                with_answers: spec.with_answers,
                ..TaskInput::default()
            }],
        };
        self.submit(by, submission).await
    }
}

/// Returns the options with which a task was submitted, as far as they are known after its end.
fn options_of(spec: &TaskSpec) -> TaskOptions {
    TaskOptions {
        priority: spec.priority,
        deadline_ms: match spec.deadline_at_ms {
            0 => 0,
            deadline_at_ms => deadline_at_ms.saturating_sub(spec.submitted_at_ms).max(1),
        },
        walltime_ms: spec.walltime_ms,
        repeatable: Some(spec.repeatable),
        memoize: spec.memo.is_some(),
        ..TaskOptions::default()
    }
}
