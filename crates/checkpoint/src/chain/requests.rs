//! Requests to the supervisor of a job, by a process that may be on another machine.
//!
//! ```text
//! <job>/ask/<16 hex digits>          stop | rescale <nodes>
//! <job>/ask/<16 hex digits>.answer   accepted | refused <why> | withdrawn
//! <job>/ask/<16 hex digits>.undone   <why>
//! ```
//!
//! A request and its answer are created once. The supervisor that answers and the process that
//! gives up create the same name, so that both know what became of the request.

use bytes::Bytes;

use super::view::repeated;
use crate::error::CheckpointError;
use crate::store::{Created, ObjectName, Store};

/// Bytes of a request or answer at most.
const TEXT_BYTES_MAX: u64 = 4096;
/// The end of the name of an answer.
const ANSWER: &str = ".answer";
/// The end of the name of the reason why an accepted request was not done.
const UNDONE: &str = ".undone";
/// Characters of a reason at most; each has 4 bytes at most.
const REASON_CHARS_MAX: usize = TEXT_BYTES_MAX as usize / 8;

/// The wish of a user about a job that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobRequest {
    /// A last checkpoint, and the end.
    Stop,
    /// A last checkpoint, and a start on another number of nodes.
    Rescale {
        /// The number of nodes, 1 or more.
        nodes: u32,
    },
}

/// The answer to a [`JobRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestAnswer {
    /// The supervisor does it.
    Accepted,
    /// The supervisor cannot do it, and says what to do instead.
    Refused(String),
    /// The process that asked has given up before an answer came.
    Withdrawn,
}

/// A request as it lies in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRequest {
    name: ObjectName,
    answer: ObjectName,
    undone: ObjectName,
    /// The wish; `None` if it is none that this release knows.
    pub request: Option<JobRequest>,
}

impl JobRequest {
    fn encode(self) -> String {
        match self {
            Self::Stop => "stop".into(),
            Self::Rescale { nodes } => format!("rescale {nodes}"),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        match text.split_once(' ') {
            None if text == "stop" => Some(Self::Stop),
            Some(("rescale", nodes)) => {
                let nodes = nodes.parse().ok().filter(|nodes| *nodes > 0)?;
                Some(Self::Rescale { nodes })
            }
            _ => None,
        }
    }
}

impl RequestAnswer {
    fn encode(&self) -> String {
        match self {
            Self::Accepted => "accepted".into(),
            Self::Refused(why) => {
                let why: String = why.chars().take(REASON_CHARS_MAX).collect();
                format!("refused {why}")
            }
            Self::Withdrawn => "withdrawn".into(),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        match text.split_once(' ') {
            None if text == "accepted" => Some(Self::Accepted),
            None if text == "withdrawn" => Some(Self::Withdrawn),
            Some(("refused", why)) => Some(Self::Refused(why.to_owned())),
            _ => None,
        }
    }
}

fn folder(job: &ObjectName) -> ObjectName {
    ObjectName::known(format!("{job}/ask"))
}

fn stored(job: &ObjectName, nonce: u64, request: Option<JobRequest>) -> StoredRequest {
    let name = ObjectName::known(format!("{job}/ask/{nonce:016x}"));
    let answer = ObjectName::known(format!("{name}{ANSWER}"));
    let undone = ObjectName::known(format!("{name}{UNDONE}"));
    StoredRequest { name, answer, undone, request }
}

/// Leaves a request. `nonce` is a number that no other request has: a random one.
///
/// # Errors
/// When the store fails, or has a request of this number.
pub fn ask(
    store: &dyn Store,
    job: &ObjectName,
    nonce: u64,
    request: JobRequest,
) -> Result<StoredRequest, CheckpointError> {
    let asked = stored(job, nonce, Some(request));
    let text = Bytes::from(request.encode());
    match repeated(|| store.create(&asked.name, &text))? {
        Created::New => Ok(asked),
        // A create whose answer was lost has written the same.
        Created::Exists if read(store, &asked.name)?.as_deref() == Some(&*request.encode()) => {
            Ok(asked)
        }
        Created::Exists => {
            Err(CheckpointError::invalid(format!("{} is there already", store.place(&asked.name))))
        }
    }
}

/// The requests to a job that nobody has answered, in the order of their names.
///
/// # Errors
/// When the store fails.
pub fn requests(
    store: &dyn Store,
    job: &ObjectName,
) -> Result<Vec<StoredRequest>, CheckpointError> {
    let listed = store.list(Some(&folder(job)))?;
    let names: Vec<&str> = listed.iter().map(|object| object.name.last_part()).collect();
    let mut open = Vec::new();
    for name in names.iter().filter(|name| !name.ends_with(ANSWER)) {
        let Some(nonce) = nonce_of(name) else { continue };
        if names.contains(&&*format!("{name}{ANSWER}")) {
            continue;
        }
        let mut request = stored(job, nonce, None);
        if let Some(text) = read(store, &request.name)? {
            request.request = JobRequest::decode(&text);
            open.push(request);
        }
    }
    Ok(open)
}

/// Answers a request; false if it has another answer already, which holds.
///
/// # Errors
/// When the store fails.
pub fn answer(
    store: &dyn Store,
    to: &StoredRequest,
    answer: &RequestAnswer,
) -> Result<bool, CheckpointError> {
    let text = answer.encode();
    let bytes = Bytes::from(text.clone());
    match repeated(|| store.create(&to.answer, &bytes))? {
        Created::New => Ok(true),
        Created::Exists => Ok(read(store, &to.answer)?.as_deref() == Some(&*text)),
    }
}

/// The answer to a request; `None` if there is none yet.
///
/// # Errors
/// When the store fails, or the answer is none that this release knows.
pub fn answer_to(
    store: &dyn Store,
    to: &StoredRequest,
) -> Result<Option<RequestAnswer>, CheckpointError> {
    let Some(text) = read(store, &to.answer)? else { return Ok(None) };
    let unknown = || CheckpointError::invalid(format!("{} is none", store.place(&to.answer)));
    RequestAnswer::decode(&text).map(Some).ok_or_else(unknown)
}

/// Tells that a request which was accepted is done: its process then [forgets](forget) it.
///
/// # Errors
/// When the store fails.
pub fn fulfil(store: &dyn Store, of: &StoredRequest) -> Result<(), CheckpointError> {
    Ok(repeated(|| store.delete(&of.name))?)
}

/// Tells that a request which was accepted is not done, and never will be, for the reason `why`.
///
/// # Errors
/// When the store fails.
pub fn give_up(store: &dyn Store, of: &StoredRequest, why: &str) -> Result<(), CheckpointError> {
    let why: String = why.chars().take(REASON_CHARS_MAX).collect();
    // The reason comes first: who asked looks for it when the request is gone.
    repeated(|| store.create(&of.undone, &Bytes::from(why.clone())))?;
    fulfil(store, of)
}

/// Why a request which was accepted is not done; `None` if nobody has [given it up](give_up).
///
/// # Errors
/// When the store fails.
pub fn given_up(store: &dyn Store, of: &StoredRequest) -> Result<Option<String>, CheckpointError> {
    read(store, &of.undone)
}

/// Whether a request is not [done](fulfil) or [given up](give_up) yet.
///
/// # Errors
/// When the store fails.
pub fn is_open(store: &dyn Store, of: &StoredRequest) -> Result<bool, CheckpointError> {
    Ok(read(store, &of.name)?.is_some())
}

/// Removes a request with its answer.
///
/// # Errors
/// When the store fails.
pub fn forget(store: &dyn Store, of: &StoredRequest) -> Result<(), CheckpointError> {
    // The answer goes last: a request without one would be answered again.
    repeated(|| store.delete(&of.name))?;
    repeated(|| store.delete(&of.undone))?;
    repeated(|| store.delete(&of.answer))?;
    Ok(())
}

/// The objects of all requests to a job, and of their answers.
///
/// # Errors
/// When the store fails.
pub fn request_objects(
    store: &dyn Store,
    job: &ObjectName,
) -> Result<Vec<ObjectName>, CheckpointError> {
    let listed = repeated(|| store.list(Some(&folder(job))))?;
    Ok(listed.into_iter().map(|object| object.name).collect())
}

fn nonce_of(name: &str) -> Option<u64> {
    u64::from_str_radix(name, 16).ok().filter(|nonce| format!("{nonce:016x}") == name)
}

/// The text of an object; an empty one if it is no text.
fn read(store: &dyn Store, name: &ObjectName) -> Result<Option<String>, CheckpointError> {
    let bytes = repeated(|| store.get(name, Some(0..TEXT_BYTES_MAX)))?;
    Ok(bytes.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    #[test]
    fn a_request_has_one_answer() {
        let (store, job) = (MemoryStore::default(), ObjectName::job("clicks").unwrap());
        let asked = ask(&store, &job, 7, JobRequest::Rescale { nodes: 3 }).unwrap();
        assert_eq!(answer_to(&store, &asked).unwrap(), None);
        assert_eq!(requests(&store, &job).unwrap(), std::slice::from_ref(&asked));
        assert!(answer(&store, &asked, &RequestAnswer::Accepted).unwrap());
        assert!(
            !answer(&store, &asked, &RequestAnswer::Withdrawn).unwrap(),
            "it has come too late"
        );
        assert_eq!(answer_to(&store, &asked).unwrap(), Some(RequestAnswer::Accepted));
        assert!(requests(&store, &job).unwrap().is_empty());
        assert!(is_open(&store, &asked).unwrap());
        fulfil(&store, &asked).unwrap();
        assert!(!is_open(&store, &asked).unwrap());
        assert_eq!(given_up(&store, &asked).unwrap(), None);
        forget(&store, &asked).unwrap();
        assert!(store.list(Some(&job)).unwrap().is_empty());
    }

    #[test]
    fn a_request_that_is_given_up_says_why() {
        let (store, job) = (MemoryStore::default(), ObjectName::job("clicks").unwrap());
        let asked = ask(&store, &job, 7, JobRequest::Rescale { nodes: 3 }).unwrap();
        assert!(answer(&store, &asked, &RequestAnswer::Accepted).unwrap());
        give_up(&store, &asked, "ended ä").unwrap();
        assert!(!is_open(&store, &asked).unwrap());
        assert!(requests(&store, &job).unwrap().is_empty());
        assert_eq!(given_up(&store, &asked).unwrap().as_deref(), Some("ended ä"));
        assert_eq!(request_objects(&store, &job).unwrap().len(), 2);
        forget(&store, &asked).unwrap();
        assert!(store.list(Some(&job)).unwrap().is_empty());
    }

    #[test]
    fn what_was_left_before_is_forgotten_and_jobs_do_not_hear_each_other() {
        let store = MemoryStore::default();
        let [one, other] = ["a", "b"].map(|job| ObjectName::job(job).unwrap());
        ask(&store, &one, 1, JobRequest::Stop).unwrap();
        ask(&store, &other, 1, JobRequest::Stop).unwrap();
        assert!(ask(&store, &one, 1, JobRequest::Rescale { nodes: 2 }).is_err());
        let objects = request_objects(&store, &one).unwrap();
        assert_eq!(objects.len(), 1);
        for object in objects {
            store.delete(&object).unwrap();
        }
        assert!(requests(&store, &one).unwrap().is_empty());
        assert_eq!(requests(&store, &other).unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_request_is_told_from_one() {
        let (store, job) = (MemoryStore::default(), ObjectName::job("j").unwrap());
        let texts = ["rescale 0", "rescale x", "rescale", "dance", "", "stop now"];
        for (nonce, text) in (0..).zip(texts) {
            let bytes = Bytes::from(text);
            store.create(&stored(&job, nonce, None).name, &bytes).unwrap();
        }
        store.create(&folder(&job).join("notes.txt").unwrap(), &Bytes::from("stop")).unwrap();
        let open = requests(&store, &job).unwrap();
        assert_eq!(open.len(), texts.len());
        assert!(open.iter().all(|of| of.request.is_none()), "{open:?}");
        store.create(&open[0].answer, &Bytes::from("perhaps")).unwrap();
        assert!(answer_to(&store, &open[0]).is_err());
        for answer in
            [RequestAnswer::Accepted, RequestAnswer::Withdrawn, RequestAnswer::Refused("é".into())]
        {
            assert_eq!(RequestAnswer::decode(&answer.encode()), Some(answer));
        }
        let long = RequestAnswer::Refused("é".repeat(10_000)).encode();
        assert!(long.len() < TEXT_BYTES_MAX as usize);
    }
}
