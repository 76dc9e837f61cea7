//! Ranks write frames: all files or none.

use std::path::Path;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::JoinType;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use dayfly_frame::{
    Format, Output, RankOptions, Session, SessionOptions, Source, restored, saved, serve, sorted_join, write,
};

use crate::files_below;
use crate::thread_group::{Net, group, options};
use crate::write_file;

const ROWS: i64 = 20_000;

/// Writes four files with numbers, and words of which some are null or would leave a directory.
async fn write_source(place: &Path) {
    let context = SessionContext::new();
    let words = [Some("a b"), Some("../c"), None, Some("é=%"), Some("1.5")];
    for file in 0..4 {
        let numbers = || file * ROWS..(file + 1) * ROWS;
        let number: ArrayRef = Arc::new(Int64Array::from_iter_values(numbers()));
        let word: ArrayRef = Arc::new(StringArray::from_iter(
            numbers().map(|number| words[number as usize % 5]),
        ));
        let digit = |number: i64| (number % 3 > 0).then_some(number % 3);
        let digit: ArrayRef = Arc::new(Int64Array::from_iter(numbers().map(digit)));
        let columns = [("number", number), ("word", word), ("digit", digit)];
        let batch =
            RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap();
        let path = place.join(format!("source/{file}.parquet"));
        write_file(&context, batch, &path).await;
    }
}

/// Runs a body with a session of so many ranks, and the written source.
fn with_session<T>(workers: u32, body: impl AsyncFn(&SessionContext, &Path) -> T + Sync) {
    let place = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(write_source(place.path()));
    group(workers + 1, Net::Shm, options(), |comm| {
        if comm.rank() < workers {
            serve(&comm, &RankOptions::default()).unwrap();
            return;
        }
        let options = SessionOptions {
            partition_bytes: 16 << 10,
            ..SessionOptions::default()
        };
        let session = Session::of(&comm, &options).unwrap();
        session.runtime().block_on(body(session.context(), place.path()));
    });
}

async fn source(context: &SessionContext, place: &Path) -> DataFrame {
    let path = place.join("source");
    context
        .read_parquet(path.to_str().unwrap(), ParquetReadOptions::default())
        .await
        .unwrap()
}

fn output(directory: &Path, partition_by: &[&str], format: Format) -> Output {
    Output {
        directory: directory.to_str().unwrap().to_owned(),
        partition_by: partition_by.iter().map(|name| (*name).to_owned()).collect(),
        format,
        id: None,
    }
}

async fn read(context: &SessionContext, directory: &Path, format: Format) -> DataFrame {
    let paths = vec![format!("{}/", directory.to_str().unwrap())];
    let source = Source {
        by_extension: true,
        ..Source::new(format, paths)
    };
    source.read(context).await.unwrap()
}

async fn summary(context: &SessionContext, frame: DataFrame) -> String {
    let own = SessionContext::new_with_state(context.state());
    let _ = own.deregister_table("t");
    own.register_table("t", frame.into_view()).unwrap();
    let query =
        "SELECT word, digit, count(*), sum(number), min(digit + 1) FROM t GROUP BY word, digit ORDER BY word, digit";
    let batches = own.sql(query).await.unwrap().collect().await.unwrap();
    pretty_format_batches(&batches).unwrap().to_string()
}

#[test]
fn written_frames_are_read_as_they_were() {
    with_session(2, async |context, place| {
        for (name, partition_by, format) in [
            ("whole", &[][..], Format::Parquet),
            ("parts", &["word", "digit"][..], Format::Parquet),
            ("csv", &["digit"][..], Format::Csv),
            ("ndjson", &["word", "digit"][..], Format::NdJson),
            ("ipc", &["word"][..], Format::Ipc),
        ] {
            let directory = place.join(name);
            let frame = source(context, place).await;
            let written = write(context, frame, &output(&directory, partition_by, format))
                .await
                .unwrap();
            assert_eq!(written.files.iter().map(|file| file.rows).sum::<u64>(), 4 * ROWS as u64);
            // Both ranks have written.
            for task in ["00000-", "00001-"] {
                let of_task = |file: &&dayfly_frame::FileEntry| file.path.contains(&format!("{}-{task}", written.run));
                assert!(written.files.iter().any(|file| of_task(&file)), "{written:?}");
            }
            // What another run left behind is not read.
            let stray = written.files[0].path.replace(&written.run, "other");
            std::fs::copy(
                place.join(name).join(&written.files[0].path),
                place.join(name).join(stray),
            )
            .unwrap();
            let again = read(context, &directory, format).await;
            let expected = summary(context, source(context, place).await).await;
            assert_eq!(summary(context, again).await, expected);
        }
    });
}

#[test]
fn failed_write_leaves_no_file() {
    with_session(2, async |context, place| {
        let directory = place.join("failed");
        let frame = source(context, place).await;
        let late = frame.select(vec![
            datafusion::prelude::col("word"),
            datafusion::prelude::lit(1) / (datafusion::prelude::col("number") - datafusion::prelude::lit(70_000)),
        ]);
        let error = write(context, late.unwrap(), &output(&directory, &[], Format::Parquet))
            .await
            .unwrap_err();
        assert!(error.to_string().contains("ivide by zero"), "{error}");
        // A canceled task removes what it has begun by itself.
        for _ in 0..100 {
            if files_below(&directory) == 0 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("{} files are left", files_below(&directory));
    });
}

#[test]
fn directory_with_something_in_it_is_refused() {
    with_session(1, async |context, place| {
        let taken = place.join("source");
        let frame = source(context, place).await;
        let error = write(context, frame, &output(&taken, &[], Format::Parquet))
            .await
            .unwrap_err();
        assert!(error.to_string().contains("has something in it"), "{error}");
        assert_eq!(files_below(&taken), 4);
    });
}

#[test]
fn unknown_partition_column_is_named() {
    with_session(1, async |context, place| {
        for (columns, expected) in [
            (vec!["zone"], "the columns are: number, word, digit"),
            (vec!["number", "word", "digit"], "all columns"),
        ] {
            let frame = source(context, place).await;
            let directory = place.join("never");
            let error = write(context, frame, &output(&directory, &columns, Format::Parquet))
                .await
                .unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert!(!directory.exists());
        }
    });
}

#[test]
fn frame_without_rows_keeps_its_columns() {
    with_session(2, async |context, place| {
        let none = source(context, place).await.limit(0, Some(0)).unwrap();
        let directory = place.join("empty");
        let written = write(context, none, &output(&directory, &[], Format::Parquet))
            .await
            .unwrap();
        assert_eq!(written.files.len(), 1);
        let again = read(context, &directory, Format::Parquet).await;
        let names: Vec<_> = again
            .schema()
            .fields()
            .iter()
            .map(|field| field.name().as_str())
            .collect();
        assert_eq!(names, ["number", "word", "digit"]);
        assert_eq!(again.count().await.unwrap(), 0);
    });
}

#[test]
fn repeated_write_replaces_runs_that_were_lost() {
    with_session(2, async |context, place| {
        let directory = place.join("again");
        std::fs::create_dir(&directory).unwrap();
        let output = Output {
            id: Some("w1".into()),
            ..output(&directory, &[], Format::Parquet)
        };
        std::fs::write(directory.join("part-w1-lost-0.parquet"), "cut off").unwrap();
        let written = write(context, source(context, place).await, &output).await.unwrap();
        assert_eq!(files_below(&directory), written.files.len() + 1);
        let found = read(context, &directory, Format::Parquet).await;
        assert_eq!(found.count().await.unwrap(), 4 * ROWS as usize);
        // A run that comes late finds that all is done.
        let again = write(context, source(context, place).await, &output).await.unwrap();
        assert_eq!(again, written);
        let other = Output {
            id: Some("w2".into()),
            ..output
        };
        let refused = write(context, source(context, place).await, &other).await.unwrap_err();
        assert!(refused.to_string().contains("has something in it"), "{refused}");
    });
}

#[test]
fn saved_plans_return_the_same_rows() {
    with_session(2, async |context, place| {
        let numbers = source(context, place).await;
        let small = numbers.clone().limit(0, Some(3)).unwrap().collect().await.unwrap();
        let memory = context.read_batches(small).unwrap();
        let csv = place.join("csv");
        let output = output(&csv, &[], Format::Csv);
        write(context, numbers.clone(), &output).await.unwrap();
        context.register_table("numbers", numbers.clone().into_view()).unwrap();
        let query =
            "SELECT digit, count(*) FROM numbers WHERE number IN (SELECT max(number) FROM numbers GROUP BY word)
            GROUP BY digit";
        let ones = numbers.clone().select_columns(&["number"]).unwrap();
        let ones = ones.with_column_renamed("number", "one").unwrap();
        let joined = numbers
            .clone()
            .join(ones, JoinType::Inner, &["number"], &["one"], None)
            .unwrap();
        let joined = sorted_join(joined.logical_plan().clone()).unwrap();
        let frames = [
            numbers.clone(),
            memory,
            read(context, &csv, Format::Csv).await,
            context.sql(query).await.unwrap(),
            DataFrame::new(context.state(), joined),
        ];
        for frame in frames {
            let plan = frame.logical_plan().clone();
            let bytes = saved(context, &plan).unwrap();
            let again = DataFrame::new(context.state(), restored(context, &bytes).unwrap());
            assert_eq!(again.schema().as_arrow().fields(), frame.schema().as_arrow().fields());
            assert_eq!(sorted(again).await, sorted(frame).await);
        }
        for bytes in [&b"no plan"[..], &[0xff; 40]] {
            assert!(restored(context, bytes).is_err());
        }
    });
}

/// The rows of a frame as lines of text, in order.
async fn sorted(frame: DataFrame) -> Vec<String> {
    let text = pretty_format_batches(&frame.collect().await.unwrap())
        .unwrap()
        .to_string();
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}
