//! Teams: named sets of tenants that functions and endpoints are shared with.

use std::collections::HashMap;
use std::sync::Arc;

use dayfly_protocol::bounds;
use dayfly_protocol::error::{Code, Failure};
use dayfly_protocol::ids::TenantId;
use dayfly_protocol::sharing::{MAX_MEMBERS, MAX_TEAMS, TEAM, Team, TeamSpec};
use dayfly_protocol::tasks::MAX_NAME_BYTES;
use dayfly_store::teams::TeamRecord;

use crate::Tasks;
use crate::detached::run_detached;
use crate::submission::{Submitter, check_name};

/// Longest description of a team, in characters.
const MAX_DESCRIPTION: usize = 1_024;
/// Longest name of a team, in bytes. It is a part of paths.
const MAX_NAME: usize = 64;

/// All teams, and the teams of each member.
#[derive(Default)]
pub struct Teams {
    all: HashMap<String, TeamRecord>,
    /// Names of the teams that a tenant is in, by its name.
    by_member: HashMap<String, Vec<String>>,
}

impl Teams {
    /// The teams that the store has.
    pub fn restored(records: Vec<TeamRecord>) -> Self {
        let mut teams = Self::default();
        for team in records {
            teams.set(team);
        }
        teams
    }

    /// Adds or replaces a team.
    fn set(&mut self, team: TeamRecord) {
        self.remove(&team.name);
        for member in &team.spec.members {
            self.by_member
                .entry(member.clone())
                .or_default()
                .push(team.name.clone());
        }
        self.all.insert(team.name.clone(), team);
    }

    fn remove(&mut self, name: &str) {
        let members = self.all.remove(name).map(|team| team.spec.members);
        for member in members.unwrap_or_default() {
            if let Some(teams) = self.by_member.get_mut(&member) {
                teams.retain(|team| team != name);
                if teams.is_empty() {
                    self.by_member.remove(&member);
                }
            }
        }
    }

    /// Names of the teams that a tenant is in.
    fn of_member(&self, name: &str) -> Vec<String> {
        self.by_member.get(name).cloned().unwrap_or_default()
    }

    /// Returns a failure if one of these names a team that does not exist.
    pub fn find_unknown(&self, shared_with: &[String]) -> Option<Failure> {
        let mut named = shared_with.iter().filter_map(|with| with.strip_prefix(TEAM));
        let unknown = named.find(|team| !self.all.contains_key(*team))?;
        let text = format!("there is no team `{unknown:.80}` to share with; `dayfly team set` creates one");
        Some(Failure::new(Code::NotFound, text))
    }
}

/// Checks the name, the description and the members of a team.
///
/// # Errors
/// `InvalidRequest` for one that is too long, and for too many members.
pub fn check_team(name: &str, spec: &TeamSpec) -> Result<(), Failure> {
    check_name("a team", name, MAX_NAME)?;
    if spec.description.chars().count() > MAX_DESCRIPTION {
        let text = format!("a description has {MAX_DESCRIPTION} characters at most");
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    let too_long = |text: &String| text.len() > MAX_NAME_BYTES;
    if spec.members.len() > MAX_MEMBERS || spec.members.iter().any(too_long) {
        let text = format!("a team has {MAX_MEMBERS} members at most, each with a name of {MAX_NAME_BYTES} bytes");
        return Err(Failure::new(Code::InvalidRequest, text));
    }
    Ok(())
}

impl Tasks {
    /// A tenant with its teams, as the submitter of tasks.
    pub fn submitter(&self, tenant: TenantId) -> Submitter {
        let name = self.tenants.name(tenant);
        let teams = self.state().teams.of_member(&name);
        Submitter { tenant, name, teams }
    }

    /// Creates a team, or changes one of the owner's.
    ///
    /// # Errors
    /// Those of [`check_team`], `QuotaExceeded` for too many teams, and `Forbidden` for another tenant's team.
    pub async fn set_team(
        self: &Arc<Self>,
        owner: TenantId,
        name: String,
        mut spec: TeamSpec,
    ) -> Result<Team, Failure> {
        check_team(&name, &spec)?;
        spec.members.sort_unstable();
        spec.members.dedup();
        {
            let state = self.state();
            let own = state.teams.all.values();
            if own.filter(|team| team.owner == owner && team.name != name).count() >= MAX_TEAMS {
                let text = format!("you have {MAX_TEAMS} teams already; remove some");
                return Err(Failure::new(Code::QuotaExceeded, text));
            }
        }
        let record = TeamRecord {
            name,
            owner,
            spec,
            removed: false,
        };
        self.write_team(record).await
    }

    async fn write_team(self: &Arc<Self>, record: TeamRecord) -> Result<Team, Failure> {
        let tasks = Arc::clone(self);
        run_detached(async move {
            let owner = record.owner;
            let kept = tasks.store.team(record).wait().await?;
            if kept.owner != owner {
                let text = format!(
                    "the team `{}` exists already and belongs to another tenant; choose another name",
                    kept.name
                );
                return Err(Failure::new(Code::Forbidden, text));
            }
            let team = tasks.team(&kept);
            tasks.state().teams.set(kept);
            Ok(team)
        })
        .await
    }

    fn team(&self, record: &TeamRecord) -> Team {
        Team {
            name: record.name.clone(),
            owner: self.tenants.name(record.owner),
            spec: record.spec.clone(),
        }
    }

    /// The teams that a tenant owns or is in, sorted by name.
    pub fn teams(&self, of: TenantId) -> Vec<Team> {
        let name = self.tenants.name(of);
        let own: Vec<TeamRecord> = {
            let state = self.state();
            let among = state.teams.of_member(&name);
            let is_its = |team: &&TeamRecord| !team.removed && (team.owner == of || among.contains(&team.name));
            state.teams.all.values().filter(is_its).cloned().collect()
        };
        let mut teams: Vec<Team> = own.iter().map(|team| self.team(team)).collect();
        teams.sort_by(|a, b| a.name.cmp(&b.name));
        teams
    }

    /// Removes a team: its members lose access to all that is shared with it. The name stays reserved for its owner.
    ///
    /// # Errors
    /// `NotFound` if the owner has no such team.
    pub async fn remove_team(self: &Arc<Self>, owner: TenantId, name: &str) -> Result<Team, Failure> {
        let found = self.state().teams.all.get(name).cloned();
        let found = found.filter(|team| team.owner == owner && !team.removed);
        let found = found.ok_or_else(|| Failure::new(Code::NotFound, format!("you have no team `{name:.80}`")))?;
        let team = self.team(&found);
        let removed = TeamRecord {
            spec: TeamSpec::default(),
            removed: true,
            ..found
        };
        self.write_team(removed).await?;
        Ok(team)
    }

    /// Refuses to share with a team that does not exist: its later founder would get access.
    pub(super) fn check_shared(&self, shared_with: &[String]) -> Result<(), Failure> {
        bounds::check_shared(shared_with)?;
        self.state().teams.find_unknown(shared_with).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn membership_follows_every_change_of_a_team() {
        let team = |name: &str, members: &[&str]| TeamRecord {
            name: name.into(),
            owner: TenantId([1; 16]),
            spec: TeamSpec {
                description: String::new(),
                members: members.iter().map(|member| (*member).to_owned()).collect(),
            },
            removed: false,
        };
        let mut teams = Teams::restored(vec![team("a", &["alice", "bob"]), team("b", &["bob"])]);
        let of = |teams: &Teams, name: &str| teams.of_member(name);
        assert_eq!(of(&teams, "alice"), ["a"]);
        assert_eq!(of(&teams, "bob")[0], "a");
        teams.set(team("a", &["carol"]));
        assert!(of(&teams, "alice").is_empty());
        assert_eq!(of(&teams, "carol"), ["a"]);
        teams.set(team("b", &[]));
        assert!(of(&teams, "bob").is_empty());
        // A member of no team has no entry.
        assert_eq!(teams.by_member.len(), 1);
    }
}
