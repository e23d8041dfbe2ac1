//! Writing of records.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout_at;
use tokio_postgres::Error;
use tokio_postgres::types::Type;

use super::Plan;
use super::connection::Connection;
use super::failure::Failure;
use super::values::{Column, Single};
use crate::{Record, Sink, WriteError};

/// Sink with one connection. A runtime of its own drives it while a call lasts.
pub struct PostgreSqlSink {
    plan: Arc<Plan>,
    session: Option<Session>,
    /// Created by the first call, which can report an error.
    runtime: Option<Runtime>,
}

/// A connection with its prepared statements.
struct Session {
    connection: Connection,
    single: Option<tokio_postgres::Statement>,
    batch: Batch,
}

/// A request of a transaction. Its answer is a number of rows.
type Request<'a> = Pin<Box<dyn Future<Output = Result<u64, Error>> + Send + 'a>>;

/// Form of the statement that writes a batch.
#[derive(Clone)]
enum Batch {
    NotPrepared,
    Arrays(tokio_postgres::Statement),
    /// No such form exists, or the server does not accept it: records are executed one by one in a transaction.
    Transaction,
    /// The statement ends its transaction, as a procedure with COMMIT does: the caller divides batches.
    Divided,
}

impl PostgreSqlSink {
    pub fn new(plan: Arc<Plan>) -> Self {
        Self { plan, session: None, runtime: None }
    }

    /// Runs a call within the time limit. Closes the connection after errors that end it.
    fn run<T>(
        &mut self,
        call: impl AsyncFnOnce(&Plan, &mut Option<Session>, Instant) -> Result<T, Failure>,
    ) -> Result<T, WriteError> {
        let runtime = match &mut self.runtime {
            Some(runtime) => runtime,
            none => {
                let runtime = Builder::new_current_thread().enable_all().build();
                let runtime =
                    runtime.map_err(|error| WriteError::Unavailable(format!("a runtime: {error}")))?;
                none.insert(runtime)
            }
        };
        let deadline = Instant::now() + self.plan.timeout;
        let call = call(&self.plan, &mut self.session, deadline);
        let result = runtime.block_on(async { timeout_at(deadline.into(), call).await });
        let failure = match result {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(failure)) => failure,
            Err(_) => {
                Failure::unavailable(format!("the server did not answer within {:?}", self.plan.timeout))
            }
        };
        // A record can crash the process of the server, or take longer than the time limit.
        let had_request = self.session.is_some() && failure.code.is_none();
        if failure.is_disconnected {
            self.session = None;
        }
        Err(match failure.error {
            WriteError::Unavailable(why) if had_request => WriteError::Failed(why),
            error => error,
        })
    }
}

impl Sink for PostgreSqlSink {
    fn write(&mut self, records: &[Record]) -> Result<(), WriteError> {
        if records.is_empty() {
            return Ok(());
        }
        self.run(async |plan, slot, deadline| {
            let session = Session::ready(plan, slot, deadline).await?;
            session.allow(plan, records);
            let prepared = session.single.clone();
            match (session.write(plan, records).await, prepared) {
                (Err(failure), Some(prepared)) if failure.is_perhaps_stale() => {
                    session.write_again(plan, records, failure, prepared.params()).await
                }
                (result, _) => result,
            }
        })
    }

    fn test(&mut self) -> Result<String, WriteError> {
        self.run(async |plan, slot, deadline| {
            let session = Session::ready(plan, slot, deadline).await?;
            session.allow(plan, &[]);
            session.forget();
            let version = session.version().await?;
            let types = session.single(plan).await?.params().to_vec();
            let batch = session.batch(plan).await?;
            Ok(describe(&version, &types, &batch))
        })
    }
}

impl Session {
    /// Returns the session of the sink, which is a new one when the server has closed the last.
    async fn ready<'a>(
        plan: &Plan,
        slot: &'a mut Option<Self>,
        deadline: Instant,
    ) -> Result<&'a mut Self, Failure> {
        let is_open = match slot {
            Some(session) => !session.connection.driver.is_closed().await,
            None => false,
        };
        if !is_open {
            *slot = None;
            let connection = Connection::open(plan, deadline).await?;
            *slot = Some(Self { connection, single: None, batch: Batch::NotPrepared });
        }
        slot.as_mut().ok_or_else(|| Failure::unavailable("there is no connection"))
    }

    /// Sets the number of bytes that the server may answer. Errors can repeat values of records.
    fn allow(&self, plan: &Plan, records: &[Record]) {
        let bytes: usize = records.iter().map(|record| 4 * record.bytes() + ANSWER).sum();
        self.connection.allowance.set(plan.response_max + bytes);
    }

    fn forget(&mut self) {
        self.single = None;
        self.batch = Batch::NotPrepared;
    }

    async fn write(&mut self, plan: &Plan, records: &[Record]) -> Result<(), Failure> {
        if let [record] = records {
            let statement = self.single(plan).await?;
            let values =
                (0..).zip(&plan.fillings).map(|(index, filling)| Single::new(record, index, *filling));
            let Connection { client, driver, .. } = &mut self.connection;
            let values: Vec<_> = values.collect();
            return driver.run(client.execute_raw(&statement, values)).await.map(drop);
        }
        let batch = self.batch(plan).await?;
        if matches!(batch, Batch::Divided) {
            return Err(Failure::to_divide());
        }
        if let Batch::Arrays(statement) = batch {
            let values =
                (0..).zip(&plan.fillings).map(|(index, filling)| Column::new(records, index, *filling));
            let Connection { client, driver, .. } = &mut self.connection;
            let values: Vec<_> = values.collect();
            match driver.run(client.execute_raw(&statement, values)).await {
                // One statement cannot update a row twice; several can.
                Err(failure) if failure.is_repeated_key() => {}
                result => return result.map(drop),
            }
        }
        self.transaction(plan, records).await
    }

    /// Prepares the statement again, because the table may have changed. Writes the records again, unless they were
    /// refused and the server still expects the same types.
    async fn write_again(
        &mut self,
        plan: &Plan,
        records: &[Record],
        failure: Failure,
        types: &[Type],
    ) -> Result<(), Failure> {
        if failure.is_disconnected {
            return Err(failure);
        }
        self.forget();
        let is_changed = self.single(plan).await?.params() != types;
        match failure.error {
            WriteError::Refused(_) if !is_changed => Err(failure),
            _ => self.write(plan, records).await,
        }
    }

    /// Executes the statement for each record. All requests are sent before the first answer is awaited.
    async fn transaction(&mut self, plan: &Plan, records: &[Record]) -> Result<(), Failure> {
        let statement = self.single(plan).await?;
        let Connection { client, driver, .. } = &mut self.connection;
        let begin = async { client.batch_execute("BEGIN").await.map(|()| 0) };
        let execute = |record| {
            let values =
                (0..).zip(&plan.fillings).map(|(index, filling)| Single::new(record, index, *filling));
            let values: Vec<_> = values.collect();
            client.execute_raw(&statement, values)
        };
        let mut requests: VecDeque<Request<'_>> = VecDeque::with_capacity(1 + records.len());
        requests.push_back(Box::pin(begin));
        requests.extend(records.iter().map(|record| Box::pin(execute(record)) as _));
        let result = driver.run(in_order(requests)).await;
        let end = if result.is_ok() { "COMMIT" } else { "ROLLBACK" };
        match (result, driver.run(client.batch_execute(end)).await) {
            (Err(failure), Ok(())) if failure.ends_transaction() => {
                self.batch = Batch::Divided;
                Err(Failure::to_divide())
            }
            (Err(failure), Err(_)) => Err(Failure { is_disconnected: true, ..failure }),
            (Err(failure), Ok(())) => Err(failure),
            (Ok(()), end) => end,
        }
    }

    /// Returns the prepared statement of one record.
    async fn single(&mut self, plan: &Plan) -> Result<tokio_postgres::Statement, Failure> {
        if let Some(statement) = &self.single {
            return Ok(statement.clone());
        }
        let Connection { client, driver, .. } = &mut self.connection;
        let statement = driver.run(client.prepare(&plan.statement.text)).await?;
        if statement.params().len() != plan.fillings.len() {
            return Err(Failure::unavailable("the server does not know the parameters of the statement"));
        }
        self.single = Some(statement.clone());
        Ok(statement)
    }

    /// Returns the form of the statement that writes a batch.
    async fn batch(&mut self, plan: &Plan) -> Result<Batch, Failure> {
        if matches!(self.batch, Batch::NotPrepared) {
            let types = self.single(plan).await?.params().to_vec();
            let Connection { client, driver, .. } = &mut self.connection;
            self.batch = match plan.statement.with_arrays(&types) {
                None => Batch::Transaction,
                Some(text) => match driver.run(client.prepare(&text)).await {
                    Ok(statement) => Batch::Arrays(statement),
                    Err(failure) if failure.is_of_statement() => {
                        tracing::debug!(
                            error = %failure.error,
                            "postgresql: the form of the statement with arrays is not accepted; executing the records \
                             of a batch one by one"
                        );
                        Batch::Transaction
                    }
                    Err(failure) => return Err(failure),
                },
            };
        }
        Ok(self.batch.clone())
    }

    async fn version(&mut self) -> Result<String, Failure> {
        let Connection { client, driver, .. } = &mut self.connection;
        let row = driver.run(client.query_one("SELECT version()", &[])).await?;
        let text: &str = row.try_get(0).map_err(Failure::from)?;
        // `PostgreSQL 17.2 on x86_64-pc-linux-gnu, compiled by ...`
        let text = text.split(" on ").next().unwrap_or_default();
        Ok(text.chars().filter(|c| !c.is_control()).take(VERSION_MAX).collect())
    }
}

/// Describes the server and the statement.
fn describe(version: &str, types: &[Type], batch: &Batch) -> String {
    let parameters = match types {
        [] => "no parameters".to_owned(),
        [one] => format!("a parameter of the type {one}"),
        many => {
            let names: Vec<&str> = many.iter().map(Type::name).collect();
            format!("parameters of the types {}", names.join(", "))
        }
    };
    let batches = match batch {
        Batch::Arrays(_) => "a batch is one statement",
        Batch::Transaction | Batch::NotPrepared => {
            "the records of a batch are executed one by one in a transaction"
        }
        Batch::Divided => "the records of a batch are executed one by one",
    };
    format!("{version}: the statement is valid and has {parameters}; {batches}")
}

/// Awaits requests that are sent in this order.
async fn in_order(requests: VecDeque<Request<'_>>) -> Result<(), Error> {
    let mut waiting = VecDeque::with_capacity(requests.len());
    for mut request in requests {
        // A request is sent when it is polled for the first time.
        match poll_fn(|cx| Poll::Ready(request.as_mut().poll(cx))).await {
            Poll::Ready(result) => _ = result?,
            Poll::Pending => waiting.push_back(request),
        }
    }
    for request in waiting {
        request.await?;
    }
    Ok(())
}

/// Number of bytes of the answer to one request, without values of the record.
const ANSWER: usize = 1024;

/// Maximum number of characters of the version of a server.
const VERSION_MAX: usize = 100;
