select * from read_csv('stays.csv')
