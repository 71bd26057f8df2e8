//! What is asked of etcd's JSON gateway and what it answers, as typed values. All bytes that come from a server pass
//! through here.
//!
//! The messages are those of `etcdserverpb` (`api/etcdserverpb/rpc.proto`, version 3) in proto3's JSON form: 64-bit integers
//! are decimal strings, bytes are base64, and a field with its default value is left out. So a transaction that lost has no
//! `succeeded`, a range that found nothing has no `kvs`, and an empty value is missing.

use anchor::{STAMP_SIZE, Stamp};
use base64ct::{Base64, Encoding};
use serde::{Deserialize, Deserializer};
use serde_json::json;

/// Which cluster answered, and at which revision of its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The cluster's id, which never changes.
    pub cluster: u64,
    /// Counts the changes of the whole store; it never goes down.
    pub revision: u64,
}

/// A stamp as etcd holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// What the key holds.
    pub stamp: Stamp,
    /// The revision at which it got there.
    pub modified: u64,
}

/// An answer that is to the point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Where it comes from.
    pub header: Header,
    /// What was found or done.
    pub content: Content,
}

/// What an answer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The transaction swapped.
    Swapped,
    /// The key holds this: the answer to a range, and to a transaction that lost.
    Holds(Option<Held>),
}

/// Why an answer is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unexpected {
    /// Not what etcd's gateway says: something else listens there.
    Foreign(String),
    /// The key holds something that is no stamp.
    NotAStamp(String),
}

/// Asks for the value of a key, linearizably: a member that is cut off from the others can't answer it.
pub(crate) fn range(key: &str) -> String {
    json!({ "key": encode(key.as_bytes()) }).to_string()
}

/// Swaps the value of a key if it is as expected, else asks for it.
pub(crate) fn swap(key: &str, expected: Option<&Stamp>, new: &Stamp) -> String {
    let key = encode(key.as_bytes());
    let compare = match expected {
        Some(stamp) => {
            json!({ "key": key, "target": "VALUE", "result": "EQUAL", "value": encode(&stamp.encode()) })
        }
        None => json!({ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0" }),
    };
    json!({
        "compare": [compare],
        "success": [{ "request_put": { "key": key, "value": encode(&new.encode()) } }],
        "failure": [{ "request_range": { "key": key } }],
    })
    .to_string()
}

fn encode(bytes: &[u8]) -> String {
    Base64::encode_string(bytes)
}

/// Reads the answer to a range.
///
/// # Errors
/// See [`Unexpected`].
pub fn read_range(body: &[u8], key: &str) -> Result<Answer, Unexpected> {
    let answer: RangeAnswer = parse(body)?;
    Ok(Answer { header: answer.header()?, content: Content::Holds(only(answer.kvs, key)?) })
}

/// Reads the answer to a transaction that swaps.
///
/// # Errors
/// See [`Unexpected`].
pub fn read_swap(body: &[u8], key: &str) -> Result<Answer, Unexpected> {
    let mut answer: SwapAnswer = parse(body)?;
    let header = header_of(answer.header)?;
    let response = match (answer.responses.pop(), answer.responses.len()) {
        (Some(response), 0) => response,
        _ => return Err(foreign("a transaction of one operation has one response")),
    };
    let content = match (answer.succeeded, response) {
        (true, Response { put: Some(_), range: None }) => Content::Swapped,
        (false, Response { put: None, range: Some(range) }) => Content::Holds(only(range.kvs, key)?),
        _ => return Err(foreign("the response is not to what was asked")),
    };
    Ok(Answer { header, content })
}

/// Bytes of a member's database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Those that count against the quota.
    pub taken: u64,
    /// Those that are used; the rest is free for what comes, and is given back by a defragmentation.
    pub used: u64,
}

/// Reads the answer to a question for a member's status.
///
/// # Errors
/// See [`Unexpected`].
pub fn read_space(body: &[u8]) -> Result<Space, Unexpected> {
    #[derive(Deserialize)]
    struct Status {
        #[serde(default, rename = "dbSize")]
        taken: Number,
        #[serde(default, rename = "dbSizeInUse")]
        used: Number,
    }
    let Status { taken, used } = parse(body)?;
    if taken.0 == 0 {
        return Err(foreign("no size of a database"));
    }
    Ok(Space { taken: taken.0, used: used.0 })
}

/// What etcd says when it refuses: its code (of gRPC) and its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The status code of gRPC: 14 is "unavailable".
    pub code: u32,
    /// For people.
    pub message: String,
}

/// Reads a refusal.
///
/// # Errors
/// See [`Unexpected`].
pub fn read_refusal(body: &[u8]) -> Result<Refusal, Unexpected> {
    /// Versions differ in which of the two names they use.
    #[derive(Deserialize)]
    struct Text {
        #[serde(default)]
        error: String,
        #[serde(default)]
        message: String,
        code: u32,
    }
    let Text { error, message, code } = parse(body)?;
    let message = if error.is_empty() { message } else { error };
    Ok(Refusal { code, message: readable(&message) })
}

/// At most 200 characters that don't disturb a terminal.
fn readable(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn foreign(why: impl Into<String>) -> Unexpected {
    Unexpected::Foreign(why.into())
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Unexpected> {
    serde_json::from_slice(body).map_err(|error| foreign(error.to_string()))
}

/// The one key that was asked for.
fn only(mut found: Vec<KeyValue>, key: &str) -> Result<Option<Held>, Unexpected> {
    let Some(pair) = found.pop() else { return Ok(None) };
    if !found.is_empty() || pair.key.0 != key.as_bytes() {
        return Err(foreign("it has another key than the one that was asked for"));
    }
    let stamp = Stamp::decode(&pair.value.0)
        .map_err(|error| Unexpected::NotAStamp(format!("{error} ({} bytes)", pair.value.0.len())))?;
    Ok(Some(Held { stamp, modified: pair.mod_revision.0 }))
}

fn header_of(header: AnswerHeader) -> Result<Header, Unexpected> {
    if header.cluster_id.0 == 0 || header.revision.0 == 0 {
        return Err(foreign("no cluster and revision in its header"));
    }
    Ok(Header { cluster: header.cluster_id.0, revision: header.revision.0 })
}

#[derive(Deserialize)]
struct RangeAnswer {
    header: AnswerHeader,
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

impl RangeAnswer {
    fn header(&self) -> Result<Header, Unexpected> {
        header_of(AnswerHeader { ..self.header })
    }
}

#[derive(Deserialize)]
struct SwapAnswer {
    header: AnswerHeader,
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<Response>,
}

#[derive(Deserialize)]
struct Response {
    #[serde(rename = "response_put")]
    put: Option<serde::de::IgnoredAny>,
    #[serde(rename = "response_range")]
    range: Option<Found>,
}

/// A range inside of a transaction: its own header has no cluster.
#[derive(Deserialize)]
struct Found {
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

#[derive(Deserialize, Clone, Copy)]
struct AnswerHeader {
    #[serde(default)]
    cluster_id: Number,
    #[serde(default)]
    revision: Number,
}

#[derive(Deserialize)]
struct KeyValue {
    #[serde(default)]
    key: Bytes,
    #[serde(default)]
    mod_revision: Number,
    #[serde(default)]
    value: Bytes,
}

/// A 64-bit integer in proto3's JSON: a decimal string.
#[derive(Default, Clone, Copy)]
struct Number(u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Number, D::Error> {
        let text = String::deserialize(from)?;
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse()
            .ok()
            .filter(|_| digits)
            .map(Number)
            .ok_or_else(|| serde::de::Error::custom("a number was expected"))
    }
}

/// Bytes in base64. A stamp has 192, a key 1024 at most; a longer text is refused before it is decoded.
#[derive(Default)]
struct Bytes(Vec<u8>);

const MAX_BYTES: usize = 4096;

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        if text.len() > MAX_BYTES {
            return Err(serde::de::Error::custom(format!("a value of more than {STAMP_SIZE} bytes")));
        }
        let bytes = Base64::decode_vec(&text).map_err(|_| serde::de::Error::custom("base64 was expected"))?;
        Ok(Bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anchor::{MOVED_TO_SIZE, State};

    fn stamp(generation: u64) -> Stamp {
        Stamp {
            volume: [1; 16],
            generation,
            head: [2; 32],
            session: [3; 16],
            claims: 4,
            header_digest: [5; 32],
            state: State::Claimed,
            moved_to: [0; MOVED_TO_SIZE],
            mac: [6; 32],
        }
    }

    const HEADER: &str = r#""header":{"cluster_id":"14841639068965178418","member_id":"10276657743932975437","revision":"7","raft_term":"2"}"#;
    const READ: Header = Header { cluster: 14_841_639_068_965_178_418, revision: 7 };

    fn pair(stamp: &Stamp) -> String {
        let (key, value) = (encode(b"/a/b"), encode(&stamp.encode()));
        format!(
            r#"{{"key":"{key}","create_revision":"2","mod_revision":"5","version":"3","value":"{value}"}}"#
        )
    }

    fn holds(stamp: Option<Stamp>) -> Answer {
        let content = Content::Holds(stamp.map(|stamp| Held { stamp, modified: 5 }));
        Answer { header: READ, content }
    }

    /// As etcd 3.4.23 answers, read from its gateway.
    #[test]
    fn answers_are_read() {
        let range = |text: &str| read_range(text.as_bytes(), "/a/b");
        let swap = |text: &str| read_swap(text.as_bytes(), "/a/b");
        assert_eq!(range(&format!("{{{HEADER}}}")), Ok(holds(None)));
        let found = pair(&stamp(9));
        assert_eq!(range(&format!(r#"{{{HEADER},"kvs":[{found}],"count":"1"}}"#)), Ok(holds(Some(stamp(9)))));
        let won = format!(
            r#"{{{HEADER},"succeeded":true,"responses":[{{"response_put":{{"header":{{"revision":"7"}}}}}}]}}"#
        );
        assert_eq!(swap(&won), Ok(Answer { header: READ, content: Content::Swapped }));
        let lost = format!(
            r#"{{{HEADER},"responses":[{{"response_range":{{"header":{{"revision":"7"}},"kvs":[{found}],"count":"1"}}}}]}}"#
        );
        assert_eq!(swap(&lost), Ok(holds(Some(stamp(9)))));
        let lost_to_nothing = format!(r#"{{{HEADER},"responses":[{{"response_range":{{}}}}]}}"#);
        assert_eq!(swap(&lost_to_nothing), Ok(holds(None)));
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let found = pair(&stamp(9));
        let other = found.replace(&encode(b"/a/b"), &encode(b"/a/c"));
        for text in [
            String::new(),
            "<html>hello</html>".into(),
            "[]".into(),
            "{}".into(),
            r#"{"header":{}}"#.into(),
            r#"{"header":{"cluster_id":"x","revision":"1"}}"#.into(),
            r#"{"header":{"cluster_id":"+5","revision":"1"}}"#.into(),
            r#"{"header":{"cluster_id":"5","revision":"99999999999999999999999"}}"#.into(),
            format!(r#"{{{HEADER},"kvs":[{other}]}}"#),
            format!(r#"{{{HEADER},"kvs":[{found},{found}]}}"#),
            format!(r#"{{{HEADER},"kvs":[{{"key":"{}","value":"%%%"}}]}}"#, encode(b"/a/b")),
            format!(r#"{{{HEADER},"kvs":[{{"value":"{}"}}]}}"#, "A".repeat(8192)),
        ] {
            let said = read_range(text.as_bytes(), "/a/b");
            assert!(matches!(said, Err(Unexpected::Foreign(_))), "{text}: {said:?}");
        }
        for text in [
            format!("{{{HEADER}}}"),
            format!(r#"{{{HEADER},"succeeded":true}}"#),
            format!(r#"{{{HEADER},"succeeded":true,"responses":[{{"response_range":{{}}}}]}}"#),
            format!(r#"{{{HEADER},"responses":[{{"response_put":{{}}}}]}}"#),
            format!(r#"{{{HEADER},"responses":[{{"response_range":{{}}}},{{"response_range":{{}}}}]}}"#),
        ] {
            let said = read_swap(text.as_bytes(), "/a/b");
            assert!(matches!(said, Err(Unexpected::Foreign(_))), "{text}: {said:?}");
        }
        let text = format!(r#"{{{HEADER},"kvs":[{{"key":"{}","value":"aGVsbG8="}}]}}"#, encode(b"/a/b"));
        let said = read_range(text.as_bytes(), "/a/b");
        assert_eq!(said, Err(Unexpected::NotAStamp("a stamp has 192 bytes, not 5 (5 bytes)".into())));
    }

    #[test]
    fn the_space_of_a_member_is_read() {
        let text = format!(
            r#"{{{HEADER},"version":"3.4.23","dbSize":"24576","leader":"1","raftIndex":"9","dbSizeInUse":"20480"}}"#
        );
        assert_eq!(read_space(text.as_bytes()), Ok(Space { taken: 24576, used: 20480 }));
        for text in ["{}", "[]", "", r#"{"dbSize":"x"}"#, r#"{"dbSize":7}"#] {
            assert!(matches!(read_space(text.as_bytes()), Err(Unexpected::Foreign(_))), "{text}");
        }
    }

    #[test]
    fn refusals_are_read() {
        let text = r#"{"error":"etcdserver: no leader","message":"etcdserver: no leader","code":14}"#;
        let wanted = Refusal { code: 14, message: "etcdserver: no leader".into() };
        assert_eq!(read_refusal(text.as_bytes()), Ok(wanted.clone()));
        // As later versions say it.
        let text = r#"{"message":"etcdserver: no leader","code":14,"details":[]}"#;
        assert_eq!(read_refusal(text.as_bytes()), Ok(wanted));
        let text = r#"{"error":"a\u001bb","code":2}"#;
        assert_eq!(read_refusal(text.as_bytes()).map(|refusal| refusal.message), Ok("a b".into()));
        assert!(matches!(read_refusal(b"404 page not found"), Err(Unexpected::Foreign(_))));
    }

    #[test]
    fn questions_are_what_the_gateway_expects() {
        assert_eq!(range("/a/b"), r#"{"key":"L2EvYg=="}"#);
        let first: serde_json::Value = serde_json::from_str(&swap("/a/b", None, &stamp(1))).expect("JSON");
        assert_eq!(first["compare"][0]["create_revision"], "0");
        assert_eq!(first["success"][0]["request_put"]["value"], encode(&stamp(1).encode()));
        let next: serde_json::Value =
            serde_json::from_str(&swap("/a/b", Some(&stamp(1)), &stamp(2))).expect("JSON");
        assert_eq!(next["compare"][0]["value"], encode(&stamp(1).encode()));
        assert_eq!(next["compare"][0]["target"], "VALUE");
        assert_eq!(next["failure"][0]["request_range"]["key"], "L2EvYg==");
    }
}
