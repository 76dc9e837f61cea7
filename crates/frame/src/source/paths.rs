//! Paths, URLs, and patterns of both.

use std::sync::Arc;

use datafusion::common::{DataFusionError, Result as QueryResult};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::context::DataFilePaths;
use datafusion::prelude::SessionContext;
use futures_util::TryStreamExt;
use glob::Pattern;
use object_store::{ObjectMeta, ObjectStore};
use url::Url;

/// Where the files of a frame are.
#[derive(Debug, Clone)]
pub struct Paths(Vec<ListingTableUrl>);

impl Paths {
    /// Of texts, each of which may have a pattern.
    ///
    /// # Errors
    /// Of a text that is none of these.
    pub fn parse(texts: &[String]) -> QueryResult<Self> {
        texts
            .iter()
            .map(|text| url_of(text))
            .collect::<QueryResult<_>>()
            .map(Self)
    }

    /// The files of all paths whose names end so, in the order of the paths and by name.
    ///
    /// # Errors
    /// Of a store.
    pub async fn files(
        &self,
        context: &SessionContext,
        extension: &str,
    ) -> QueryResult<Vec<(Arc<dyn ObjectStore>, ObjectMeta)>> {
        let state = context.state();
        let mut files = Vec::new();
        for url in &self.0 {
            let store = context.runtime_env().object_store(url.object_store())?;
            let listed = url.list_all_files(&state, store.as_ref(), extension).await?;
            let mut found: Vec<_> = listed.try_collect().await?;
            found.sort_by(|one, other| one.location.cmp(&other.location));
            files.extend(found.into_iter().map(|file| (Arc::clone(&store), file)));
        }
        Ok(files)
    }
}

impl DataFilePaths for Paths {
    fn to_urls(self) -> QueryResult<Vec<ListingTableUrl>> {
        Ok(self.0)
    }
}

/// A path as the library has it, which finds patterns in local paths only.
fn url_of(text: &str) -> QueryResult<ListingTableUrl> {
    let pattern = text.find(['*', '?', '[']).filter(|_| text.contains("://"));
    let Some((directory, pattern)) = pattern.and_then(|place| text.split_at(text[..place].rfind('/')? + 1).into())
    else {
        return ListingTableUrl::parse(text);
    };
    let external = |error: Box<dyn std::error::Error + Send + Sync>| DataFusionError::External(error);
    let url = Url::parse(directory).map_err(|error| external(error.into()))?;
    let pattern = Pattern::new(pattern).map_err(|error| external(error.into()))?;
    ListingTableUrl::try_new(url, Some(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::path::Path;

    #[test]
    fn patterns_of_urls_match_below_their_directory() {
        let url = url_of("s3://bucket/runs/2026-*.csv").unwrap();
        assert_eq!(url.as_str(), "s3://bucket/runs/");
        assert!(url.contains(&Path::from("runs/2026-11.csv"), true));
        assert!(!url.contains(&Path::from("runs/2025-11.csv"), true));
        assert_eq!(url_of("s3://bucket/a b.csv").unwrap().prefix(), &Path::from("a b.csv"));
        assert!(url_of("s3://bucket/[").is_err());
    }
}
