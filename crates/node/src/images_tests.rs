use super::*;
use std::process::Command;

fn images(dir: &Path, named: Vec<String>) -> Arc<Images> {
    Images::new(dir.join("images"), "test".into(), named, false)
}

fn named(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

/// Packs a directory with one file of this content. `None` if the tool is missing.
fn pack(dir: &Path, text: &str) -> Option<PathBuf> {
    let (from, to) = (dir.join("from"), dir.join("image.sqfs"));
    std::fs::create_dir_all(&from).unwrap();
    std::fs::write(from.join("file"), text).unwrap();
    let _ = std::fs::remove_file(&to);
    let packed = Command::new("mksquashfs")
        .args([from.as_os_str(), to.as_os_str()])
        .args(["-quiet", "-no-progress"])
        .output();
    match packed {
        Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
        Err(_) => {
            println!("skipped: mksquashfs not found; install squashfs-tools");
            return None;
        }
    }
    Some(to)
}

fn unpacked(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir.join("images")).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn lease_gets_only_permitted_images() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    for name in ["one", "two"] {
        std::fs::create_dir(root.join(name)).unwrap();
    }
    let (one, two) = (
        root.join("one").display().to_string(),
        root.join("two").display().to_string(),
    );
    let site = images(&root, named(&[&one, &two]));
    assert_eq!(site.get(None, false).await.unwrap().described, one);
    assert_eq!(site.get(Some(&two), false).await.unwrap().root, root.join("two"));
    for asked in [&format!("{one}/"), "/", "--help", "", &format!("{one}/../two")] {
        let failure = site.get(Some(asked), false).await.unwrap_err();
        assert_eq!(failure.code, Code::InvalidRequest, "{asked}");
        assert!(
            failure.message.contains(&one) && failure.message.contains(asked),
            "{failure}"
        );
    }
    let nothing = images(&root, named(&[])).get(None, false).await.unwrap_err();
    assert!(nothing.message.contains("--image"), "{nothing}");
    let own = images(&root, named(&[]));
    assert_eq!(own.get(Some(&two), true).await.unwrap().root, root.join("two"));
    for asked in [None, Some("-x"), Some("/"), Some("../one")] {
        assert_eq!(own.get(asked, true).await.unwrap_err().code, Code::InvalidRequest);
    }
    let missing = own.get(Some("/no/such/place"), true).await.unwrap_err();
    assert_eq!(missing.code, Code::NotFound);
    // An image that appeared meanwhile is found.
    let late = root.join("late");
    let asked = late.display().to_string();
    assert!(own.get(Some(&asked), true).await.is_err());
    std::fs::create_dir(&late).unwrap();
    assert_eq!(own.get(Some(&asked), true).await.unwrap().root, late);
}

#[tokio::test]
async fn changed_image_replaces_old_one_after_last_lease() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let Some(packed) = pack(&root, "first") else { return };
    let name = packed.display().to_string();
    let site = images(&root, named(&[&name]));
    // Ten concurrent requests get the same image, unpacked once.
    let all = futures_util::future::join_all((0..10).map(|_| site.get(None, false))).await;
    let first = all.into_iter().map(Result::unwrap).next().unwrap();
    assert_eq!(std::fs::read_to_string(first.root.join("file")).unwrap(), "first");
    assert_eq!(unpacked(&root).len(), 2);
    site.refresh().await;
    assert!(Arc::ptr_eq(&site.get(None, false).await.unwrap(), &first));
    let insisted = site.get(Some(&first.described), false).await.unwrap();
    assert!(Arc::ptr_eq(&insisted, &first));
    drop(insisted);

    pack(&root, "second");
    site.refresh().await;
    let second = site.get(None, false).await.unwrap();
    assert_eq!(std::fs::read_to_string(second.root.join("file")).unwrap(), "second");
    assert_eq!(std::fs::read_to_string(first.root.join("file")).unwrap(), "first");
    let refused = site.get(Some(&first.described), false).await.unwrap_err();
    assert!(refused.message.contains(&second.described), "{refused}");
    let gone = first.root.clone();
    drop(first);
    site.refresh().await;
    assert!(!gone.exists() && second.root.exists());
    assert_eq!(unpacked(&root).len(), 2);

    // The file is gone, and with it the image.
    std::fs::remove_file(&packed).unwrap();
    site.refresh().await;
    assert_eq!(site.get(None, false).await.unwrap_err().code, Code::NotFound);
    drop(second);
    site.refresh().await;
    assert_eq!(unpacked(&root), [""; 0]);
}

#[tokio::test]
async fn restarted_node_reuses_complete_images_and_removes_others() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let Some(packed) = pack(&root, "first") else { return };
    let name = packed.display().to_string();
    let first = images(&root, named(&[&name])).get(None, false).await.unwrap();
    std::fs::write(first.root.join("mark"), "").unwrap();
    std::fs::create_dir(root.join("images/half")).unwrap();
    std::fs::write(root.join("images/old.json"), "{}").unwrap();
    let site = images(&root, named(&[&name]));
    site.prepare().await;
    assert!(site.get(None, false).await.unwrap().root.join("mark").exists());
    assert_eq!(unpacked(&root).len(), 2);
    // An unreadable note is ignored.
    let note = first.root.with_extension("json");
    std::fs::write(&note, "nonsense").unwrap();
    let site = images(&root, named(&[&name]));
    assert!(!site.get(None, false).await.unwrap().root.join("mark").exists());
}
