use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FileType, Mode, RenameFlags, mknodat, renameat_with};
use tempfile::TempDir;

use super::*;

/// A root with a store in it, and a directory next to it in which nothing may appear.
struct TestRoot {
    _directory: TempDir,
    root: PathBuf,
    outside: PathBuf,
}

impl TestRoot {
    fn new() -> (Self, FileStore) {
        // In memory if the system has such a directory, so that these tests do not wait for a disk.
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() {
            tempfile::tempdir_in(memory)
        } else {
            tempfile::tempdir()
        };
        let directory = directory.unwrap();
        let (root, outside) = (directory.path().join("root"), directory.path().join("out"));
        fs::create_dir(&outside).unwrap();
        let store = FileStore::open(&root).unwrap();
        let root_dir = Self {
            _directory: directory,
            root,
            outside,
        };
        (root_dir, store)
    }

    fn outside_is_empty(&self) -> bool {
        fs::read_dir(&self.outside).unwrap().next().is_none()
    }
}

fn put(store: &FileStore, key: &str, text: &str) -> Result<(), StorageError> {
    store.0.keep("agent", key, text.as_bytes())
}

fn get(store: &FileStore, key: &str) -> io::Result<Option<String>> {
    let text = store.0.get("agent", key)?;
    Ok(text.map(|text| String::from_utf8(text.to_vec()).unwrap()))
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_file_is_replaced_atomically_and_readable_by_its_owner_only() {
    let (root_dir, store) = TestRoot::new();
    put(&store, "a/b/c.json", "[1]").unwrap();
    let file = root_dir.root.join("agent/a/b/c.json");
    assert_eq!(fs::read_to_string(&file).unwrap(), "[1]");
    assert_eq!(mode(&file), 0o600);
    for directory in ["", "agent", "agent/a", "agent/a/b"] {
        assert_eq!(mode(&root_dir.root.join(directory)), 0o700, "{directory}");
    }
    let before = fs::File::open(&file).unwrap();
    put(&store, "a/b/c.json", "[2,3]").unwrap();
    assert_eq!(get(&store, "a/b/c.json").unwrap().unwrap(), "[2,3]");
    assert_eq!(
        io::read_to_string(before).unwrap(),
        "[1]",
        "who reads it still has the old one"
    );
    let names = fs::read_dir(root_dir.root.join("agent/a/b"))
        .unwrap()
        .count();
    assert_eq!(names, 1, "no temporary file is left");
    assert_eq!(get(&store, "a/b/d").unwrap(), None);
    assert_eq!(get(&store, "x/b/d").unwrap(), None);
    assert_eq!(store.0.get("other", "a/b/c.json").unwrap(), None);
}

#[test]
fn no_key_escapes_the_directory_of_its_agent() {
    let (root_dir, store) = TestRoot::new();
    let long = "x".repeat(256);
    let deep = "d/".repeat(101) + "x";
    for key in [
        "",
        ".",
        "..",
        "../x",
        "../../out/x",
        "a/../../../out/x",
        "a/..",
        "a/.",
        "a/./b",
        "/x",
        "/etc/x",
        "a//b",
        "a/",
        ".x",
        "a/.x",
        ".tmp-1",
        "-x",
        "a b",
        "a\\..\\b",
        "a\0b",
        "é",
        "a\nb",
        "%2e%2e/x",
        &long,
        &deep,
    ] {
        assert!(
            matches!(put(&store, key, "1"), Err(StorageError::BadKey)),
            "{key:?}"
        );
        assert_eq!(get(&store, key).unwrap(), None, "{key:?}");
    }
    assert_eq!(fs::read_dir(&root_dir.root).unwrap().count(), 0);
    assert!(root_dir.outside_is_empty());
}

#[test]
fn each_agent_has_its_own_directory_below_the_root() {
    let (root_dir, store) = TestRoot::new();
    let agents = [
        "a", "A", "..", ".", "...", "../out", "a/b", "a%2Fb", "/", "/etc", "é", "a b", "a\0", ".a",
        "a.b", "%",
    ];
    for agent in agents {
        store.0.keep(agent, "k", agent.as_bytes()).unwrap();
    }
    for agent in agents {
        let text = store.0.get(agent, "k").unwrap().unwrap();
        assert_eq!(text, agent.as_bytes(), "{agent:?}");
    }
    assert_eq!(fs::read_dir(&root_dir.root).unwrap().count(), agents.len());
    assert!(root_dir.outside_is_empty());
    for agent in ["", &"é".repeat(100)] {
        let refused = store.0.keep(agent, "k", b"1");
        assert!(matches!(refused, Err(StorageError::BadKey)), "{agent:?}");
    }
}

#[test]
fn symbolic_links_are_never_followed() {
    let (root_dir, store) = TestRoot::new();
    let refused = |key: &str| {
        assert!(
            matches!(put(&store, key, "1"), Err(StorageError::Failed(_))),
            "{key}"
        );
        assert!(!matches!(get(&store, key), Ok(Some(_))), "{key}");
    };
    let agent = root_dir.root.join("agent");
    // The directory of the agent.
    symlink(&root_dir.outside, &agent).unwrap();
    refused("k");
    fs::remove_file(&agent).unwrap();
    // Key directories that are links: to a directory, to nothing, and within the root.
    put(&store, "own/k", "1").unwrap();
    symlink(&root_dir.outside, agent.join("dir")).unwrap();
    symlink(root_dir.outside.join("none"), agent.join("dangling")).unwrap();
    symlink("own", agent.join("inside")).unwrap();
    refused("dir/k");
    refused("dangling/k");
    refused("inside/k");
    // Files that are links: to a file, to nothing, and to a directory.
    let secret = root_dir.outside.join("secret");
    symlink(&secret, agent.join("new")).unwrap();
    refused("new");
    assert!(root_dir.outside_is_empty());
    fs::write(&secret, "secret").unwrap();
    symlink(&secret, agent.join("file")).unwrap();
    symlink(&root_dir.outside, agent.join("to-dir")).unwrap();
    refused("file");
    refused("to-dir");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    // The root.
    let link = root_dir.outside.join("link");
    symlink(&root_dir.root, &link).unwrap();
    assert!(matches!(
        FileStore::open(&link),
        Err(OpenError::Unusable { .. })
    ));
    assert!(matches!(
        FileStore::open(&secret),
        Err(OpenError::Unusable { .. })
    ));
}

#[test]
fn replacing_the_root_by_a_link_does_not_redirect_an_open_store() {
    let (root_dir, store) = TestRoot::new();
    let moved = root_dir.root.with_file_name("moved");
    fs::rename(&root_dir.root, &moved).unwrap();
    symlink(&root_dir.outside, &root_dir.root).unwrap();
    put(&store, "k", "1").unwrap();
    assert!(root_dir.outside_is_empty());
    assert_eq!(fs::read_to_string(moved.join("agent/k")).unwrap(), "1");
}

#[test]
fn entries_that_are_not_regular_files_are_not_touched() {
    let (root_dir, store) = TestRoot::new();
    put(&store, "dir/k", "1").unwrap();
    put(&store, "file", "1").unwrap();
    for key in ["dir", "file/k"] {
        assert!(
            matches!(put(&store, key, "2"), Err(StorageError::Failed(_))),
            "{key}"
        );
        assert!(get(&store, key).is_err(), "{key}");
    }
    let pipe = root_dir.root.join("agent/pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert!(put(&store, "pipe", "2").is_err());
    assert!(get(&store, "pipe").is_err());
    let other = root_dir.outside.join("other");
    fs::hard_link(root_dir.root.join("agent/file"), &other).unwrap();
    put(&store, "file", "2").unwrap();
    assert_eq!(fs::read_to_string(other).unwrap(), "1");
    assert_eq!(get(&store, "dir/k").unwrap().unwrap(), "1");
}

#[test]
fn nothing_is_written_outside_while_directories_are_replaced_by_links() {
    let (root_dir, store) = TestRoot::new();
    put(&store, "d/e/k", "0").unwrap();
    let (directory, link) = (
        root_dir.root.join("agent/d"),
        root_dir.root.join("agent/link"),
    );
    symlink(&root_dir.outside, &link).unwrap();
    // The target that a step would find if it followed the link.
    fs::create_dir(root_dir.outside.join("e")).unwrap();
    let (done, swaps) = (AtomicBool::new(false), AtomicU32::new(0));
    let mut stored = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                renameat_with(CWD, &directory, CWD, &link, RenameFlags::EXCHANGE).unwrap();
                swaps.fetch_add(1, Ordering::SeqCst);
            }
        });
        for n in 0..10_000 {
            stored += u32::from(put(&store, "d/e/k", &n.to_string()).is_ok());
        }
        done.store(true, Ordering::SeqCst);
    });
    assert!(swaps.load(Ordering::SeqCst) > 100);
    assert!(stored > 100, "{stored} of the writes went well");
    fs::remove_dir(root_dir.outside.join("e")).unwrap();
    assert!(root_dir.outside_is_empty());
}

#[test]
fn an_agent_stores_at_most_100_mib_of_files() {
    let (root_dir, store) = TestRoot::new();
    let large = "x".repeat(MAX_VALUE_BYTES);
    for n in 0..10 {
        put(&store, &format!("d/{n}"), &large).unwrap();
    }
    let full = || matches!(put(&store, "x", "1"), Err(StorageError::TooManyBytes));
    assert!(full());
    store.0.keep("other", "k", b"1").unwrap();
    put(&store, "d/3", &large).unwrap();
    put(&store, "d/3", &large[1..]).unwrap();
    put(&store, "x", "1").unwrap();
    assert!(matches!(
        put(&store, "x", "12"),
        Err(StorageError::TooManyBytes)
    ));
    // Removals by others free room.
    fs::remove_file(root_dir.root.join("agent/d/5")).unwrap();
    put(&store, "d/10", &large).unwrap();
    // A new process counts the existing files.
    let again = FileStore::open(&root_dir.root).unwrap();
    assert!(matches!(
        put(&again, "y", "1"),
        Err(StorageError::TooManyBytes)
    ));
    put(&again, "d/10", "1").unwrap();
    put(&again, "y", "1").unwrap();
    let usage = again.0.measure("agent").unwrap();
    let large = MAX_VALUE_BYTES as u64;
    // Nine large ones, of which one has a byte less, and three of one byte.
    assert_eq!(usage.bytes, 9 * large - 1 + 3);
    assert_eq!(usage.entries, 13);
}

#[test]
fn files_and_directories_are_counted() {
    let (_place, store) = TestRoot::new();
    put(&store, "a/b/c", "1").unwrap();
    let account = store.0.account("agent");
    assert_eq!(
        account.lock().unwrap().unwrap(),
        store.0.measure("agent").unwrap()
    );
    assert_eq!(account.lock().unwrap().unwrap().entries, 3);
    for n in 3..MAX_AGENT_ENTRIES {
        put(&store, &n.to_string(), "1").unwrap();
    }
    for key in ["new", "d/new"] {
        assert!(
            matches!(put(&store, key, "1"), Err(StorageError::TooManyEntries)),
            "{key}"
        );
    }
    put(&store, "a/b/c", "2").unwrap();
}

#[test]
fn stale_temporary_files_are_removed() {
    let (root_dir, store) = TestRoot::new();
    let agent = root_dir.root.join("agent");
    fs::create_dir(&agent).unwrap();
    let (old, young) = (agent.join(".tmp-old"), agent.join(".tmp-young"));
    fs::write(&old, "12345").unwrap();
    fs::write(&young, "123").unwrap();
    let file = fs::File::options().write(true).open(&old).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3601))
        .unwrap();
    put(&store, "k", "1").unwrap();
    assert!(!old.exists());
    assert!(young.exists());
    assert_eq!(
        store.0.measure("agent").unwrap(),
        Usage {
            bytes: 4,
            entries: 2
        }
    );
}
