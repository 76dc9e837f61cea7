//! Paths, URLs, and patterns of both.

use datafusion::common::{DataFusionError, Result as QueryResult};
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::execution::context::DataFilePaths;
use glob::Pattern;
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

    /// As the library has them.
    pub fn urls(&self) -> &[ListingTableUrl] {
        &self.0
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
